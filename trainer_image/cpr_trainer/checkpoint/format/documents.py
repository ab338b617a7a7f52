"""Manifests, documents and parts of saves: written once, read back and verified.

TrainerError
└── SnapshotError
    ├── DamagedError  a save does not verify, or is missing: take the next candidate
    │   └── UnknownAnchorError  a key in a spec names no anchor
    ├── OvertakenError  a save came too late: the next incarnation may have chosen already
    └── LayoutError   another job's anchor is of another shape: it cannot be restored into this job
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from cpr_contract import CONTRACT_VERSION
from cpr_contract.codec import ContractError, from_json, to_json
from cpr_contract.manifests import (
    MANIFEST,
    DenseManifest,
    ManifestRef,
    Part,
    RestoreRecord,
    ShardManifest,
    WorkersManifest,
    incarnation_prefix,
    step_folder,
)
from cpr_contract.pinned_data import DataManifest, DataPin, VocabularyManifest
from cpr_trainer.arrays import Floats, Ints, Values
from cpr_trainer.checkpoint.format.keys import place_of
from cpr_trainer.checkpoint.format.parts import PartError, Shape
from cpr_trainer.errors import TrainerError
from cpr_trainer.store import ExistsError, MissingError, Store, in_parallel


class SnapshotError(TrainerError):
    """A save cannot be used."""

    reason = "UnusableSave"


class DamagedError(SnapshotError):
    """A save does not verify; `key` names the damaged object, `what` describes the damage."""

    reason = "DamagedSave"
    advice: ClassVar[str] = "An older save is used where the budget allows it; check the store for lost objects."

    def __init__(self, key: str, what: str) -> None:
        super().__init__(f"{key} {what}.", self.advice)
        self.key = key
        self.what = what


class UnknownAnchorError(DamagedError):
    """A key in a spec names no anchor: it is mistyped, or the anchor was deleted."""

    reason = "BadSpec"
    advice = "State the key of an anchor, ID/gen-.../manifest.json: `cprjob snapshots ls` lists those of a store."


class OvertakenError(SnapshotError):
    """A save was committed after another incarnation had begun to choose, so it cannot be relied on."""

    reason = "Superseded"


class LayoutError(SnapshotError):
    """An anchor to restore from has other tables, another dimension or optimizers of other kinds."""

    reason = "LayoutMismatch"


Document = TypeVar(
    "Document", ShardManifest, DenseManifest, RestoreRecord, DataManifest, DataPin, VocabularyManifest, WorkersManifest
)
Manifest = TypeVar("Manifest", ShardManifest, DenseManifest)


def write_once(
    store: Store,
    key: str,
    document: ShardManifest
    | DenseManifest
    | RestoreRecord
    | DataManifest
    | DataPin
    | VocabularyManifest
    | WorkersManifest,
) -> ManifestRef:
    """Commit a document, which is never overwritten.

    The same bytes under that key are success: the answer of an earlier attempt was lost. Raises ExistsError for others.
    """
    data = to_json(document).encode()
    try:
        store.put(key, data, if_absent=True)
    except ExistsError:
        if store.get(key) != data:
            raise
    return ManifestRef(key, _digest(data))


def read_document(store: Store, kind: type[Document], key: str, digest: str = "") -> tuple[Document, ManifestRef]:
    """Read a document, of that digest if one is given. Raises DamagedError, MissingError."""
    data = store.get(key)
    ref = ManifestRef(key, _digest(data))
    if digest and ref.digest != digest:
        raise DamagedError(key, "is not what was committed: its digest differs")
    try:
        document = from_json(kind, data)
    except ContractError as error:
        raise DamagedError(key, f"cannot be read: {error}") from error
    if document.contract not in {CONTRACT_VERSION, CONTRACT_VERSION - 1}:
        raise DamagedError(key, f"is of contract version {document.contract}")
    return document, ref


def find_document(store: Store, kind: type[Document], key: str) -> tuple[Document, ManifestRef] | None:
    """Read a document; None if there is none. Raises DamagedError, StoreError."""
    try:
        return read_document(store, kind, key)
    except MissingError:
        return None


def read_manifest(store: Store, kind: type[Manifest], ref: ManifestRef, layout: str) -> tuple[Manifest, ManifestRef]:
    """Read a manifest of that digest (if given) and layout, and check its key. Raises DamagedError."""
    try:
        manifest, found = read_document(store, kind, ref.key, ref.digest)
    except MissingError as error:
        raise DamagedError(ref.key, "is missing") from error
    if place_of(manifest).manifest != ref.key:
        raise DamagedError(ref.key, "belongs elsewhere: " + place_of(manifest).manifest)
    if manifest.layout != layout:
        raise DamagedError(ref.key, "was saved with other tables, another precision, or optimizers of other kinds")
    return manifest, found


def read_shard_manifest(  # noqa: PLR0913, PLR0917 -- the identity of one save
    store: Store, job_uid: str, generation: int, index: int, incarnation: int, step: int
) -> tuple[ShardManifest, ManifestRef] | None:
    """Return the manifest of an incarnation's save at the cut `step`; None if it is not committed (yet).

    Raises DamagedError if it cannot be read, StoreError.
    """
    key = f"{incarnation_prefix(job_uid, generation, index, incarnation)}/{step_folder(step)}/{MANIFEST}"
    return find_document(store, ShardManifest, key)


def read_part(store: Store, part: Part, pieces: Sequence[memoryview]) -> None:
    """Fill memory of the size of a part with its bytes, and check its size and checksum. Raises DamagedError."""
    try:
        received = store.get_into(part.key, pieces)
    except MissingError as error:
        raise DamagedError(part.key, "is missing") from error
    if received.size_bytes != part.size_bytes:
        raise DamagedError(part.key, f"has {received.size_bytes} bytes, not {part.size_bytes}")
    if received.crc32c != part.crc32c:
        raise DamagedError(part.key, "has another checksum than in its manifest")


def exists(store: Store, key: str) -> bool:
    """Return whether a document is committed. Raises StoreError."""
    try:
        store.get_into(key, ())
    except MissingError:
        return False
    return True


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


#: A shard's save: its manifest, and the reference to that.
Found = tuple[ShardManifest, ManifestRef]


def read_chain(store: Store, found: Found) -> tuple[Found, ...]:
    """Return a save with the saves of its chain, oldest first. Raises DamagedError, StoreError."""
    manifest, ref = found
    below = in_parallel(lambda ref: read_manifest(store, ShardManifest, ref, manifest.layout), manifest.chain)
    for save, its_ref in (*below, found):
        if save.kind == "Priority" or save.spans != manifest.spans:
            raise DamagedError(its_ref.key, f"cannot be the base of {ref.key}")
    return (*below, found)


def parts_of(found: Found) -> tuple[Part, ...]:
    """Return the parts of a save. Raises DamagedError unless they have all of its rows."""
    manifest, ref = found
    if sum(part.rows for part in manifest.parts) != manifest.rows:
        raise DamagedError(ref.key, f"names parts that do not hold {manifest.rows} rows")
    return manifest.parts


def read_rows(store: Store, part: Part, shape: Shape, rows: Values | NDArray[np.uint8], state: Floats) -> Ints:
    """Fill rows [k, ...] and state [k, W] with a part's bytes; return the places, int64 [k]. Raises DamagedError."""
    if part.size_bytes != shape.size_bytes:
        raise DamagedError(part.key, f"has {part.size_bytes} bytes for {part.rows} rows")
    head = bytearray(shape.head_bytes)
    read_part(store, part, [memoryview(head), rows.data, state.data])
    try:
        return shape.places(head)
    except PartError as error:
        raise DamagedError(part.key, str(error)) from error


def read_places(store: Store, part: Part, shape: Shape) -> Ints:
    """Return the places of a part's rows, int64 [k]: only its head is read. Raises DamagedError, StoreError."""
    head = bytearray(shape.head_bytes)
    try:
        received = store.get_into(part.key, [memoryview(head)])
        if received.size_bytes != part.size_bytes:
            raise DamagedError(part.key, f"has {received.size_bytes} bytes, not {part.size_bytes}")
        return shape.places(head)
    except MissingError as error:
        raise DamagedError(part.key, "is missing") from error
    except PartError as error:
        raise DamagedError(part.key, str(error)) from error
