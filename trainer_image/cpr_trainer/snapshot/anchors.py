"""Anchors: the commit record of a cut, found, resolved and verified."""

from __future__ import annotations

from cpr_contract.manifests import DenseManifest, ManifestRef, dense_prefix, step_folder
from cpr_contract.roster import AnchorRef
from cpr_trainer.snapshot.commit import read_document
from cpr_trainer.snapshot.errors import DamagedError, LayoutError
from cpr_trainer.snapshot.lineage import Candidate
from cpr_trainer.snapshot.names import committed_in, dense_save
from cpr_trainer.store import MissingError, Store


def find_anchor(store: Store, job_uid: str, generation: int, step: int) -> AnchorRef | None:
    """Return the anchor committed at `step` of this generation, of the newest group if there are several.

    One that cannot be read is passed over. Raises StoreError.
    """
    saves = committed_in(store.list(dense_prefix(job_uid, generation) + "/"))
    at_step = (save for save in saves if save.folder.endswith(f"/{step_folder(step)}/"))
    for save in sorted(at_step, key=lambda save: save.writer, reverse=True):
        try:
            return _reference(*_read(store, save.manifest, ""))
        except DamagedError:
            continue
    return None


def read_anchor(store: Store, anchor: AnchorRef) -> DenseManifest:
    """Read an anchor's manifest and verify it by its digest. Raises DamagedError, StoreError."""
    return _read(store, anchor.key, anchor.digest)[0]


def resolve_anchor(store: Store, key: str, layout: str) -> AnchorRef:
    """Return the reference of any anchor of this store, of any job, by the key of its manifest (`restore_from`).

    Raises LayoutError if it is of another shape, DamagedError if it is not there or no anchor, StoreError.
    """
    manifest, ref = _read(store, key, "")
    if manifest.layout != layout:
        raise LayoutError(
            f"{key} was saved with other tables, another dimension, shard count or optimizer.",
            "Give this job the same model and shard count as the job that wrote the anchor, or another anchor.",
        )
    return _reference(manifest, ref)


def dense_start(store: Store, anchor: AnchorRef | None, restore_from: str | None, layout: str) -> Candidate:
    """Name the dense state that a generation starts from. Raises as `resolve_anchor` does, for `restore_from`."""
    if anchor is not None:
        return Candidate("Anchor", layout, anchor.step, anchor.key, anchor.digest)
    if restore_from is not None:
        other = resolve_anchor(store, restore_from, layout)
        return Candidate("RestoreFrom", layout, 0, other.key, other.digest)
    return Candidate("Seed", layout, 0)


def shard_start(store: Store, anchor: AnchorRef | None, restore_from: str | None, layout: str, index: int) -> Candidate:
    """Name what shard `index` starts a generation from. Raises as `resolve_anchor` does, for `restore_from`.

    An anchor of this job that cannot be read makes a candidate with that damage: there may be newer saves before it.
    """
    start = dense_start(store, anchor, restore_from, layout)
    match start.kind:
        case "Seed":
            return start
        case "RestoreFrom":
            save = _shard_of(_read(store, start.key, start.digest)[0], start.key, index)
        case _:
            try:
                save = _shard_of(_read(store, start.key, start.digest)[0], start.key, index)
            except DamagedError as error:
                return Candidate(start.kind, layout, start.step, error.key, damage=error.what)
    return Candidate(start.kind, layout, start.step, save.key, save.digest)


def _read(store: Store, key: str, digest: str) -> tuple[DenseManifest, ManifestRef]:
    try:
        manifest, ref = read_document(store, DenseManifest, key, digest)
    except MissingError as error:
        raise DamagedError(key, "is missing") from error
    if not manifest.shards:
        raise DamagedError(key, "is no anchor: it names no shards")
    if dense_save(manifest).manifest != key:
        raise DamagedError(key, "belongs elsewhere: " + dense_save(manifest).manifest)
    return manifest, ref


def _reference(manifest: DenseManifest, ref: ManifestRef) -> AnchorRef:
    return AnchorRef(ref.key, ref.digest, manifest.generation, manifest.step, manifest.samples)


def _shard_of(manifest: DenseManifest, key: str, index: int) -> ManifestRef:
    if index >= len(manifest.shards):
        raise DamagedError(key, f"names {len(manifest.shards)} shards, not shard {index}")
    return manifest.shards[index]
