"""A shard's saves: written by `save_shard`, found by `candidates`, read by `load_shard`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, assert_never

import torch

from cpr_contract import CONTRACT_VERSION
from cpr_contract.manifests import ManifestRef, Origin, Part, ShardManifest
from cpr_contract.roster import AnchorRef
from cpr_trainer.snapshot.anchors import shard_start
from cpr_trainer.snapshot.commit import read_candidate, read_document, read_part, write_once, write_part
from cpr_trainer.snapshot.errors import DamagedError
from cpr_trainer.snapshot.lineage import Candidate, shard_lineage
from cpr_trainer.snapshot.names import (
    committed_in,
    cut_of_shard,
    origin_key,
    origins_in,
    part_name,
    shard_folder,
    shard_save,
)
from cpr_trainer.snapshot.parts import PartError, SlotRange, decode_part, encode_part, plan_parts, row_bytes
from cpr_trainer.store import MissingError, Store

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class ShardMeta:
    """What a shard says of a save, but for its parts: the fields of `ShardManifest`."""

    job_uid: str
    generation: int
    index: int
    incarnation: int
    kind: Literal["Anchor", "Flush"]
    step: int
    samples: int
    layout: str
    applied: tuple[int, ...]
    lost: Ranges


@dataclass(frozen=True, slots=True)
class SavedShard:
    """A committed save of a shard."""

    manifest: ShardManifest
    ref: ManifestRef


@dataclass(frozen=True, slots=True)
class RestoredShard:
    """Where a shard stands after a restore.

    `manifest` and `ref` are None for first values. `step`, `samples`, `applied` and `lost` are those to go on with: 0
    and empty after `RestoreFrom` and `Seed`; `lost` is empty after `Anchor` too, since it counts from there.
    """

    step: int
    samples: int
    applied: tuple[int, ...]
    lost: Ranges
    manifest: ShardManifest | None
    ref: ManifestRef | None


def save_shard(store: Store, meta: ShardMeta, rows: torch.Tensor, state: torch.Tensor | None) -> SavedShard:
    """Write rows [n, D] and optimizer state [n] (float32, CPU, contiguous), parts first, the manifest last.

    Once this returns the save is committed. A repeated call (after an error) writes the same objects again and commits
    once. Raises StoreError; ExistsError if another content was committed at this step.
    """
    name = shard_save(_manifest(meta, ()))
    parts = tuple(
        write_part(store, name.folder + part_name(number), encode_part(rows, state, slots), slots.rows)
        for number, slots in enumerate(plan_parts(rows.shape[0], row_bytes(rows, state)))
    )
    manifest = _manifest(meta, parts)
    return SavedShard(manifest, write_once(store, name.manifest, manifest))


def read_shard_manifest(  # noqa: PLR0913, PLR0917 -- the identity of one save
    store: Store, job_uid: str, generation: int, index: int, incarnation: int, step: int
) -> tuple[ShardManifest, ManifestRef] | None:
    """Return the manifest of an incarnation's save at the cut `step`; None if it is not committed (yet).

    Raises DamagedError if it cannot be read, StoreError.
    """
    key = cut_of_shard(job_uid, generation, index, incarnation, step).manifest
    try:
        return read_document(store, ShardManifest, key)
    except MissingError:
        return None


def candidates(  # noqa: PLR0913, PLR0917 -- the identity of one shard
    store: Store,
    job_uid: str,
    generation: int,
    index: int,
    incarnation: int,
    anchor: AnchorRef | None,
    layout: str,
    restore_from: str | None = None,
) -> tuple[Candidate, ...]:
    """What incarnation `incarnation` may restore, newest first; never empty.

    Ends with the generation's anchor; without one with `restore_from` (another job's anchor, by key); without that with
    `Seed`. Parts are not looked at. Raises StoreError; LayoutError or DamagedError for a `restore_from` that does not
    fit or is not there.
    """
    keys = store.list(shard_folder(job_uid, generation, index))
    origins = {n: _read_origin(store, key) for n, key in origins_in(keys).items() if n < incarnation}
    line = shard_lineage(origins, committed_in(keys), incarnation, layout)
    return (*line, shard_start(store, anchor, restore_from, layout, index))


def load_shard(store: Store, candidate: Candidate, rows: torch.Tensor, state: torch.Tensor | None) -> RestoredShard:
    """Verify the candidate and copy it into rows [n, D] and state [n] (float32, CPU, contiguous).

    Parts are verified one by one and copied at once, so that memory for one part is enough: after a DamagedError
    `rows` and `state` hold a mixture, and must be loaded from another candidate (every save is complete) before they
    are used. `Seed` leaves them alone: the caller fills in first values. Raises DamagedError, StoreError.
    """
    if candidate.kind == "Seed":
        return RestoredShard(0, 0, (), (), None, None)
    manifest, ref = read_candidate(store, ShardManifest, candidate)
    name = shard_save(manifest)
    if name.manifest != ref.key:
        raise DamagedError(ref.key, "belongs elsewhere: " + name.manifest)
    saved_rows = sum(part.rows for part in manifest.parts)
    if saved_rows != rows.shape[0]:
        raise DamagedError(ref.key, f"holds {saved_rows} rows, not {rows.shape[0]}")
    first = 0
    for part in manifest.parts:
        try:
            decode_part(read_part(store, part), SlotRange(first, part.rows), rows, state)
        except PartError as error:
            raise DamagedError(part.key, str(error)) from error
        first += part.rows
    return _restored(candidate, manifest, ref)


def write_origin(store: Store, origin: Origin) -> None:
    """Record what an incarnation restored; done before it serves. Writing the same again is success.

    Raises StoreError; ExistsError if another process recorded another choice under this incarnation.
    """
    write_once(store, origin_key(origin.job_uid, origin.generation, origin.index, origin.incarnation), origin)


def _restored(candidate: Candidate, manifest: ShardManifest, ref: ManifestRef) -> RestoredShard:
    match candidate.kind:
        case "RestoreFrom" | "Seed":
            return RestoredShard(0, 0, (), (), manifest, ref)
        case "Anchor":
            return RestoredShard(manifest.step, manifest.samples, manifest.applied, (), manifest, ref)
        case "Save":
            return RestoredShard(manifest.step, manifest.samples, manifest.applied, manifest.lost, manifest, ref)
        case _:
            assert_never(candidate.kind)


def _manifest(meta: ShardMeta, parts: tuple[Part, ...]) -> ShardManifest:
    return ShardManifest(
        contract=CONTRACT_VERSION,
        job_uid=meta.job_uid,
        generation=meta.generation,
        index=meta.index,
        incarnation=meta.incarnation,
        kind=meta.kind,
        step=meta.step,
        samples=meta.samples,
        layout=meta.layout,
        applied=meta.applied,
        lost=meta.lost,
        parts=parts,
    )


def _read_origin(store: Store, key: str) -> Origin | None:
    try:
        origin, _ = read_document(store, Origin, key)
    except DamagedError:
        return None
    place = origin_key(origin.job_uid, origin.generation, origin.index, origin.incarnation)
    return origin if place == key else None
