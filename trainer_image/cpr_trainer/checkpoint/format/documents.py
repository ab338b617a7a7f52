"""Writing and reading manifests: what commits a save, and what identifies it."""

from __future__ import annotations

import hashlib
from typing import TypeVar

from cpr_contract import CONTRACT_VERSION
from cpr_contract.codec import ContractError, from_json, to_json
from cpr_contract.manifests import DataManifest, DenseManifest, ManifestRef, Origin, Part, ShardManifest
from cpr_trainer.checkpoint.format.errors import DamagedError
from cpr_trainer.checkpoint.format.names import cut_of_shard, place_of
from cpr_trainer.store import ExistsError, MissingError, Store, checksum

Document = TypeVar("Document", ShardManifest, DenseManifest, Origin, DataManifest)
Manifest = TypeVar("Manifest", ShardManifest, DenseManifest)


def write_once(store: Store, key: str, document: ShardManifest | DenseManifest | Origin | DataManifest) -> ManifestRef:
    """Commit a document: from now on it is there, once and for all.

    The same bytes under that key are success: an earlier attempt whose answer got lost. Raises ExistsError for others.
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


def read_manifest(store: Store, kind: type[Manifest], ref: ManifestRef, layout: str) -> tuple[Manifest, ManifestRef]:
    """Read a manifest of that digest (if one is given) and layout; it lies where it belongs. Raises DamagedError."""
    try:
        manifest, found = read_document(store, kind, ref.key, ref.digest)
    except MissingError as error:
        raise DamagedError(ref.key, "is missing") from error
    if place_of(manifest).manifest != ref.key:
        raise DamagedError(ref.key, "belongs elsewhere: " + place_of(manifest).manifest)
    if manifest.layout != layout:
        raise DamagedError(ref.key, "was saved with other tables, or with optimizers of other kinds")
    return manifest, found


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


def read_part(store: Store, part: Part) -> bytes:
    """Read a part whose size and checksum are those of its manifest. Raises DamagedError."""
    try:
        data = store.get(part.key)
    except MissingError as error:
        raise DamagedError(part.key, "is missing") from error
    if len(data) != part.size_bytes:
        raise DamagedError(part.key, f"has {len(data)} bytes, not {part.size_bytes}")
    if checksum(data) != part.crc32c:
        raise DamagedError(part.key, "has another checksum than its manifest says")
    return data


def is_there(store: Store, key: str) -> bool:
    """Tell whether a document is committed. Raises StoreError."""
    return any(entry.key == key for entry in store.list(key))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
