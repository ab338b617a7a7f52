"""Reads what a shard's save consists of: its manifests, and the rows of one part."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cpr_contract.manifests import ManifestRef, Part, ShardManifest
from cpr_trainer.arrays import Floats, Ints
from cpr_trainer.checkpoint.format.documents import read_manifest
from cpr_trainer.checkpoint.format.errors import DamagedError
from cpr_trainer.checkpoint.format.parts import PartError, Shape
from cpr_trainer.store import MissingError, Store, in_parallel

Found = tuple[ShardManifest, ManifestRef]


def read_chain(store: Store, found: Found) -> tuple[Found, ...]:
    """Return a save with those that it stands on, oldest first. Raises DamagedError, StoreError."""
    manifest, ref = found
    below = in_parallel(lambda ref: read_manifest(store, ShardManifest, ref, manifest.layout), manifest.chain)
    for save, its_ref in (*below, found):
        if save.kind == "Priority" or save.spans != manifest.spans:
            raise DamagedError(its_ref.key, f"is no save that {ref.key} can stand on")
    return (*below, found)


def parts_of(found: Found) -> tuple[Part, ...]:
    """Return the parts of a save. Raises DamagedError unless they hold its rows."""
    manifest, ref = found
    if sum(part.rows for part in manifest.parts) != manifest.rows:
        raise DamagedError(ref.key, f"names parts that do not hold {manifest.rows} rows")
    return manifest.parts


def read_rows(store: Store, part: Part, shape: Shape, rows: Floats | NDArray[np.uint8], state: Floats) -> Ints:
    """Fill rows [k, ...] and state [k, W] with a part's bytes; return the places, int64 [k]. Raises DamagedError."""
    if part.size_bytes != shape.size_bytes:
        raise DamagedError(part.key, f"has {part.size_bytes} bytes for {part.rows} rows")
    head = bytearray(shape.head_bytes)
    pieces = [memoryview(head), rows.data, state.data]
    try:
        received = store.get_into(part.key, pieces)
    except MissingError as error:
        raise DamagedError(part.key, "is missing") from error
    if received.size_bytes != part.size_bytes:
        raise DamagedError(part.key, f"has {received.size_bytes} bytes, not {part.size_bytes}")
    if received.crc32c != part.crc32c:
        raise DamagedError(part.key, "has another checksum than its manifest says")
    try:
        return shape.places(head)
    except PartError as error:
        raise DamagedError(part.key, str(error)) from error
