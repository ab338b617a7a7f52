"""Documents next to saves: claims of incarnations, restore records, frozen inputs of a job, and anchors.

A claim keeps a late save from being used. An incarnation claims its shard before it lists saves; its predecessor checks
for claims after each commit. Either the successor lists the save, or the predecessor finds the claim.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from math import inf
from typing import TypeVar

from cpr_contract import CONTRACT_VERSION
from cpr_contract.codec import to_json
from cpr_contract.manifests import (
    DenseManifest,
    ManifestRef,
    RestoreRecord,
    ShardManifest,
    TableIds,
    WorkersManifest,
    dense_prefix,
    workers_key,
)
from cpr_contract.model import ModelSpec
from cpr_contract.pinned_data import DataManifest, TableVocabulary, VocabularyManifest, data_key, vocabulary_key
from cpr_contract.roster import AnchorRef, ShardRoster
from cpr_trainer.checkpoint.format.documents import (
    DamagedError,
    LayoutError,
    OvertakenError,
    UnknownAnchorError,
    exists,
    find_document,
    read_document,
    write_once,
)
from cpr_trainer.checkpoint.format.keys import claims_in, claims_prefix, committed_in, place_of, restore_record_key
from cpr_trainer.store import ExistsError, MissingError, Store
from cprjob_serving.vocabulary import Vocabulary

#: A document of a job's frozen inputs: its first leader writes it once, and all trainers use it.
FrozenInput = TypeVar("FrozenInput", DataManifest, WorkersManifest)


def claim(store: Store, roster: ShardRoster, job_uid: str) -> None:
    """Record that an incarnation is about to list saves: it may miss later ones. Raises StoreError."""
    prefix = claims_prefix(job_uid, roster.counters.generation, roster.index)
    store.put(f"{prefix}{roster.incarnation:04d}", b"{}")


def check_claims(store: Store, saved: ShardManifest) -> None:
    """Raise OvertakenError if a later incarnation may not have found this save, which is committed. Raises StoreError.

    An incarnation that claims after this listing also lists after it, and finds the save.
    """
    prefix = claims_prefix(saved.job_uid, saved.generation, saved.index)
    newest = max(claims_in(entry.key for entry in store.list(prefix)), default=0)
    if newest > saved.incarnation:
        what = f"The save of step {saved.step} came after incarnation {newest} had begun to restore"
        raise OvertakenError(f"{what}.", "Nothing is to be done: that incarnation continues from an earlier save.")


def write_restore_record(store: Store, record: RestoreRecord) -> None:
    """Write what an incarnation restored, before it serves: the lineage follows from these. Repeating it is success.

    Raises StoreError; ExistsError if another process recorded another choice under this incarnation.
    """
    write_once(store, restore_record_key(record), record)


def rewrite_restore_record(store: Store, record: RestoreRecord) -> None:
    """Write a serving incarnation's restore record again, if it is lost or unreadable. See `write_restore_record`."""
    try:
        write_restore_record(store, record)
    except ExistsError:
        if read_restore_record(store, restore_record_key(record)) is not None:
            raise
        store.put(restore_record_key(record), to_json(record).encode())


def read_restore_record(store: Store, key: str) -> RestoreRecord | None:
    """Return a record; None if it cannot be read, or has another's key. Raises StoreError."""
    try:
        record, _ = read_document(store, RestoreRecord, key)
    except DamagedError:
        return None
    return record if restore_record_key(record) == key else None


def read_frozen(store: Store, kind: type[FrozenInput], key: str) -> FrozenInput | None:
    """Return the frozen document of a key, None if there is none yet. Raises StoreError, DamagedError."""
    found = find_document(store, kind, key)
    return None if found is None else found[0]


def freeze(store: Store, found: FrozenInput) -> FrozenInput:
    """Freeze an input, and return the frozen one: another leader may have been faster. Raises as `read_frozen`."""
    key = _frozen_key(found)
    try:
        write_once(store, key, found)
    except ExistsError:
        return read_document(store, type(found), key)[0]
    return found


def restore_frozen(store: Store, frozen: DataManifest | WorkersManifest | None) -> None:
    """Write a frozen document again if it was lost with its bucket; does nothing for None. Raises StoreError."""
    if frozen is None:
        return
    key = _frozen_key(frozen)
    if not exists(store, key):
        write_once(store, key, frozen)


def _frozen_key(frozen: DataManifest | WorkersManifest) -> str:
    if isinstance(frozen, WorkersManifest):
        return workers_key(frozen.job_uid)
    return data_key(frozen.job_uid, evaluates=frozen.evaluates)


def write_vocabularies(store: Store, job_uid: str, found: Mapping[str, Vocabulary]) -> None:
    """Write vocabularies, by the name of their table, unless they exist. Raises StoreError.

    They are frozen, so a later change of a file changes no row. Another leader may have been faster, or existing ones
    were lost, for example with the bucket.
    """
    if exists(store, vocabulary_key(job_uid)):
        return
    listed = tuple(TableVocabulary(table, each.digest, len(each)) for table, each in found.items())
    for each in listed:
        store.put(vocabulary_key(job_uid, each.digest), found[each.table].text)
    with suppress(ExistsError):
        write_once(store, vocabulary_key(job_uid), VocabularyManifest(CONTRACT_VERSION, job_uid, listed))


def read_vocabularies(store: Store, job_uid: str) -> dict[str, Vocabulary] | None:
    """Return the vocabularies of a job, by the name of their table; None if there are none yet.

    Raises StoreError, DamagedError.
    """
    written = find_document(store, VocabularyManifest, vocabulary_key(job_uid))
    if written is None:
        return None
    return {listed.table: read_values(store, job_uid, listed.digest) for listed in written[0].tables}


def read_values(store: Store, job_uid: str, digest: str) -> Vocabulary:
    """Return the vocabulary of a job that has this digest. Raises StoreError, DamagedError."""
    key = vocabulary_key(job_uid, digest)
    try:
        text = store.get(key)
    except MissingError as error:
        raise DamagedError(key, "is missing") from error
    if hashlib.sha256(text).hexdigest() != digest:
        raise DamagedError(key, "is not what was written: its digest differs")
    return Vocabulary.of(text)


def vocabularies_of(store: Store, anchor: str, model: ModelSpec) -> dict[str, Vocabulary]:
    """Return the vocabularies of the model of an anchor, by the name of their table.

    anchor: its key, which begins with its job. Raises StoreError, DamagedError.
    """
    if all(table.ids != "Vocabulary" for table in model.tables):
        return {}
    job_uid = anchor.partition("/")[0]
    if (found := read_vocabularies(store, job_uid)) is None:
        raise DamagedError(vocabulary_key(job_uid), "is missing")
    return found


def find_anchor(store: Store, job_uid: str, generation: int, step: int) -> AnchorRef | None:
    """Return the anchor committed at `step` of this generation; see `find_anchors`."""
    found = next(find_anchors(store, job_uid, generation, step), None)
    return found if found is not None and found.step == step else None


def find_anchors(store: Store, job_uid: str, generation: int, last_step: float = inf) -> Iterator[AnchorRef]:
    """Yield the anchors of a generation up to a step, newest first: of each step that of the newest group.

    Unreadable ones are ignored. Raises StoreError.
    """
    saves = committed_in(entry.key for entry in store.list(dense_prefix(job_uid, generation) + "/"))
    due, newest = (save for save in saves if save.kind == "Anchor" and save.step <= last_step), inf
    for save in sorted(due, key=lambda save: (save.step, save.writer), reverse=True):
        if save.step < newest:
            with suppress(DamagedError):
                manifest, ref = read_anchor_manifest(store, save.manifest, "")
                newest = save.step
                yield AnchorRef(ref.key, ref.digest, generation, save.step, manifest.samples)


def read_anchor_manifest(
    store: Store, key: str, digest: str, wrong: type[DamagedError] = DamagedError
) -> tuple[DenseManifest, ManifestRef]:
    """Read an anchor's manifest, of that digest if one is given.

    Raises `wrong` if there is none of this key, DamagedError if it cannot be read, StoreError.
    """
    try:
        manifest, ref = read_document(store, DenseManifest, key, digest)
    except MissingError as error:
        raise wrong(key, "is missing") from error
    if not manifest.shards:
        raise wrong(key, "is not an anchor: it names no shards")
    if place_of(manifest).manifest != key:
        raise wrong(key, "belongs elsewhere: " + place_of(manifest).manifest)
    return manifest, ref


def read_named_anchor(store: Store, key: str) -> tuple[DenseManifest, ManifestRef]:
    """Read the manifest of an anchor that a user names. Raises UnknownAnchorError, DamagedError, StoreError."""
    if any(piece in {"", ".", ".."} for piece in key.split("/")):
        raise UnknownAnchorError(key or "The empty key", "is not a key of an object")
    return read_anchor_manifest(store, key, "", UnknownAnchorError)


def seed_of(manifest: DenseManifest) -> int | None:
    """Return the seed of rows that no save of an anchor has; None if the manifest does not have it."""
    return None if manifest.model is None else manifest.model.seed


def read_anchor(store: Store, anchor: AnchorRef) -> DenseManifest:
    """Read an anchor's manifest and verify it by its digest. Raises DamagedError, StoreError."""
    return read_anchor_manifest(store, anchor.key, anchor.digest)[0]


def is_even(store: Store, anchor: AnchorRef) -> bool:
    """Return whether every shard's save holds exactly the steps up to the anchor's, of every rank.

    Any number of trainers can continue from such an anchor. Raises DamagedError, StoreError.
    """
    saves = (read_document(store, ShardManifest, ref.key, ref.digest)[0] for ref in read_anchor(store, anchor).shards)
    return all(set(save.applied) == {anchor.step} for save in saves)


def read_fitting_anchor(store: Store, key: str, layout: str, ids: TableIds) -> DenseManifest:
    """Read the manifest of an anchor that a user names, of any job of this store.

    Raises as `check_fits` and `read_named_anchor`.
    """
    manifest, _ = read_named_anchor(store, key)
    check_fits(manifest, key, layout, ids)
    return manifest


def check_fits(manifest: DenseManifest, key: str, layout: str, ids: TableIds) -> None:
    """Raise LayoutError if an anchor is of another shape, or its tables have other ids."""
    if manifest.layout != layout:
        raise LayoutError(
            f"{key} was saved with other tables, another dimension or precision, or optimizers of other kinds.",
            "Give this job the same model as the job that wrote the anchor, or name the anchor in "
            "spec.restoreFrom, which takes tables by name.",
        )
    for table, _ in sorted(set(ids) ^ set(manifest.ids)):
        saved, ours = (dict(each).get(table, "CPR64") for each in (manifest.ids, ids))
        raise LayoutError(
            f"{key} was saved with ids of {saved} in table {table}; this job has {ours}, so its rows are other ids'.",
            f"Give table {table} in spec.model.tables the ids {saved}, or give this job another anchor.",
        )
