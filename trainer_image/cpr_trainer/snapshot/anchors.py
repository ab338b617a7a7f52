"""Anchors: the commit record of a cut, found, resolved and verified."""

from __future__ import annotations

from dataclasses import replace

from cpr_contract.manifests import DenseManifest, ManifestRef, ShardManifest, dense_prefix, step_folder
from cpr_contract.roster import AnchorRef
from cpr_trainer.placement import Placement
from cpr_trainer.snapshot.commit import read_document
from cpr_trainer.snapshot.errors import DamagedError, LayoutError
from cpr_trainer.snapshot.lineage import Candidate
from cpr_trainer.snapshot.names import committed_in, dense_save
from cpr_trainer.store import MissingError, Store

#: `table_ids` of a model.
TableIds = tuple[tuple[str, str], ...]


def find_anchor(store: Store, job_uid: str, generation: int, step: int) -> AnchorRef | None:
    """Return the anchor committed at `step` of this generation, of the newest group if there are several.

    One that cannot be read is passed over. Raises StoreError.
    """
    saves = committed_in(entry.key for entry in store.list(dense_prefix(job_uid, generation) + "/"))
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
    manifest, ref = _read(store, key, "")
    if manifest.layout != layout:
        raise LayoutError(
            f"{key} was saved with other tables, another dimension or optimizers of other kinds.",
            "Give this job the same model as the job that wrote the anchor, or another anchor.",
        )
    for table, _ in sorted(set(ids) ^ set(manifest.ids)):
        saved, wanted = (dict(each).get(table, "CPR64") for each in (manifest.ids, ids))
        raise LayoutError(
            f"{key} was saved with ids of {saved} in table {table}; this job has {wanted}, so its rows are other ids'.",
            f"Give table {table} in spec.model.tables the ids {saved}, or give this job another anchor.",
        )
    return _reference(manifest, ref)


def dense_start(
    store: Store, anchor: AnchorRef | None, restore_from: str | None, layout: str, ids: TableIds
) -> Candidate:
    """Name the dense state that a generation starts from. Raises as `resolve_anchor` does, for `restore_from`."""
    if anchor is not None:
        return Candidate("Anchor", layout, anchor.step, (ManifestRef(anchor.key, anchor.digest),))
    if restore_from is not None:
        other = resolve_anchor(store, restore_from, layout, ids)
        return Candidate("RestoreFrom", layout, 0, (ManifestRef(other.key, other.digest),))
    return Candidate("Seed", layout, 0)


def shard_start(store: Store, start: Candidate, placement: Placement, index: int) -> Candidate:
    """Name what shard `index` of `placement` starts from, where the dense state does from `start`.

    These are all saves that hold some of its places. An anchor of this job that cannot be read makes a candidate with
    that damage: there may be newer saves before it. Raises DamagedError for `RestoreFrom`.
    """
    if start.kind == "Seed":
        return start
    try:
        manifest, _ = _read(store, start.saves[0].key, start.saves[0].digest)
    except DamagedError as error:
        if start.kind == "RestoreFrom":
            raise
        return replace(start, damage=error.what)
    return replace(start, saves=tuple(manifest.shards[i] for i in placement.holders(index, len(manifest.shards))))


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
