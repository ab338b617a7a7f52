"""Anchors: the commit record of a cut, found, resolved and verified."""

from __future__ import annotations

from cpr_contract.manifests import DenseManifest, ManifestRef, ShardManifest, TableIds, dense_prefix, step_folder
from cpr_contract.roster import AnchorRef
from cpr_trainer.checkpoint.format.documents import read_document
from cpr_trainer.checkpoint.format.errors import DamagedError, LayoutError
from cpr_trainer.checkpoint.format.names import committed_in, dense_save
from cpr_trainer.store import MissingError, Store


def find_anchor(store: Store, job_uid: str, generation: int, step: int) -> AnchorRef | None:
    """Return the anchor committed at `step` of this generation, of the newest group if there are several.

    One that cannot be read is passed over. Raises StoreError.
    """
    saves = committed_in(entry.key for entry in store.list(dense_prefix(job_uid, generation) + "/"))
    at_step = (save for save in saves if save.folder.endswith(f"/{step_folder(step)}/"))
    for save in sorted(at_step, key=lambda save: save.writer, reverse=True):
        try:
            return _reference(*read_anchor_manifest(store, save.manifest, ""))
        except DamagedError:
            continue
    return None


def read_anchor_manifest(store: Store, key: str, digest: str) -> tuple[DenseManifest, ManifestRef]:
    """Read an anchor's manifest, of that digest if one is given. Raises DamagedError, StoreError."""
    try:
        manifest, ref = read_document(store, DenseManifest, key, digest)
    except MissingError as error:
        raise DamagedError(key, "is missing") from error
    if not manifest.shards:
        raise DamagedError(key, "is no anchor: it names no shards")
    if dense_save(manifest).manifest != key:
        raise DamagedError(key, "belongs elsewhere: " + dense_save(manifest).manifest)
    return manifest, ref


def seed_of(manifest: DenseManifest) -> int | None:
    """Return what gives rows their first values that no save of an anchor holds; None if it does not say."""
    return None if manifest.model is None else manifest.model.seed


def read_anchor(store: Store, anchor: AnchorRef) -> DenseManifest:
    """Read an anchor's manifest and verify it by its digest. Raises DamagedError, StoreError."""
    return read_anchor_manifest(store, anchor.key, anchor.digest)[0]


def is_even(store: Store, anchor: AnchorRef) -> bool:
    """Return whether every shard's save holds exactly the steps up to the anchor's, of every rank.

    Any number of trainers can go on from such an anchor. Raises DamagedError, StoreError.
    """
    saves = (read_document(store, ShardManifest, ref.key, ref.digest)[0] for ref in read_anchor(store, anchor).shards)
    return all(set(save.applied) == {anchor.step} for save in saves)


def resolve_anchor(store: Store, key: str, layout: str, ids: TableIds) -> AnchorRef:
    """Return the reference of any anchor of this store, of any job, by the key of its manifest (`restore_from`).

    Raises LayoutError if it is of another shape, or its tables have other ids, DamagedError if it is not there or no
    anchor, StoreError.
    """
    manifest, ref = read_anchor_manifest(store, key, "")
    check_fits(manifest, key, layout, ids)
    return _reference(manifest, ref)


def check_fits(manifest: DenseManifest, key: str, layout: str, ids: TableIds) -> None:
    """Raise LayoutError if an anchor is of another shape, or its tables have other ids."""
    if manifest.layout != layout:
        raise LayoutError(
            f"{key} was saved with other tables, another dimension or optimizers of other kinds.",
            "Give this job the same model as the job that wrote the anchor, or name the anchor in "
            "spec.restoreFrom, which takes tables by name.",
        )
    for table, _ in sorted(set(ids) ^ set(manifest.ids)):
        saved, wanted = (dict(each).get(table, "CPR64") for each in (manifest.ids, ids))
        raise LayoutError(
            f"{key} was saved with ids of {saved} in table {table}; this job has {wanted}, so its rows are other ids'.",
            f"Give table {table} in spec.model.tables the ids {saved}, or give this job another anchor.",
        )


def _reference(manifest: DenseManifest, ref: ManifestRef) -> AnchorRef:
    return AnchorRef(ref.key, ref.digest, manifest.generation, manifest.step, manifest.samples)
