"""What was found of a job's data, as the document that pins it, and back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, islice

from cpr_contract import CONTRACT_VERSION
from cpr_contract.manifests import DataManifest
from cpr_trainer.data.blocks import Block, Index, SourceFile
from cpr_trainer.store import Version


def to_manifest(job_uid: str, uri: str, indices: Sequence[Index], *, evaluates: bool = False) -> DataManifest:
    """Return the document of what `uri` named. About 120 bytes of it are a file's, and 25 a block's."""
    files = [index.file for index in indices]
    blocks = [block for index in indices for block in index.blocks]
    columns = {file.columns: None for file in files}  # Most files have the same.
    places = {names: place for place, names in enumerate(columns)}
    return DataManifest(
        contract=CONTRACT_VERSION,
        job_uid=job_uid,
        uri=uri,
        uris=tuple(file.uri for file in files),
        sizes=tuple(file.version.size_bytes for file in files),
        tags=tuple(file.version.tag for file in files),
        in_turn=tuple(index.in_turn for index in indices),
        columns_of=tuple(places[file.columns] for file in files),
        blocks=tuple(len(index.blocks) for index in indices),
        columns=tuple(columns),
        block_rows=tuple(block.rows for block in blocks),
        block_starts=tuple(block.start for block in blocks),
        block_sizes=tuple(block.size for block in blocks),
        evaluates=evaluates,
    )


def to_indices(manifest: DataManifest) -> list[Index]:
    """Return what `to_manifest` was given. Raises ValueError if the lists do not fit together."""
    m = manifest
    if sum(m.blocks) != len(m.block_rows):
        raise ValueError(f"{len(m.block_rows)} blocks where the files have {sum(m.blocks)}")
    blocks = zip(m.block_rows, m.block_starts, m.block_sizes, strict=True)
    indices = []
    for uri, size, tag, in_turn, columns, count in zip(
        m.uris, m.sizes, m.tags, m.in_turn, m.columns_of, m.blocks, strict=True
    ):
        file = SourceFile(uri, Version(size, tag), m.columns[columns])
        own = list(islice(blocks, count))
        firsts = accumulate((rows for rows, _, _ in own), initial=0)
        indices.append(
            Index(file, tuple(Block(file, first, *each) for first, each in zip(firsts, own, strict=False)), in_turn)
        )
    return indices
