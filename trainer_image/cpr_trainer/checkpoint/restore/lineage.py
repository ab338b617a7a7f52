"""The lineage of a shard: the saves that a restore may take, newest first.

A save is on the lineage if it was written before the next incarnation chose: all saves of the newest incarnation that
ever served, then those of its parent up to the save that was restored, and so on. The restore record `origin.json` has
each choice, and the priority saves on top of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from cpr_contract.manifests import ManifestRef, RestoreRecord
from cpr_contract.roster import AnchorRef, ShardRoster
from cpr_contract.spec import JobSpec
from cpr_trainer.checkpoint.format.documents import DamagedError
from cpr_trainer.checkpoint.format.keys import SaveName, committed_in, parse_save, restore_records_in, shard_folder
from cpr_trainer.checkpoint.format.records import (
    check_fits,
    read_anchor_manifest,
    read_named_anchor,
    read_restore_record,
    seed_of,
)
from cpr_trainer.checkpoint.restore.by_name import TableMapping, map_tables, saved_model, sources_of
from cpr_trainer.embedding.placement import Placement, layout_hash
from cpr_trainer.store import Store


@dataclass(frozen=True, slots=True)
class Candidate:
    """One state that may be restored. It is verified when it is loaded.

    `kind`: `Save` is of this generation, `Anchor` the one that this generation starts from, `RestoreFrom` another job's
    anchor, `Seed` the first values. `saves` are the manifests that hold it: one, but none for `Seed`, and several for a
    shard of an anchor that was taken with other shards. A `Save` has no digest. `priority` are the priority saves to
    put on top, oldest first. `writer` is the incarnation (of a shard's save) or the group (of a dense save) of a
    `Save`, else None. `step` is the step of training after the restore. A known `damage` is raised when it is loaded.

    With `tables` the saves are of other tables, and `layout` is theirs. `seed` is that of the first values of rows that
    no save has; None: the job's.
    """

    kind: Literal["Save", "Anchor", "RestoreFrom", "Seed"]
    layout: str
    step: int
    saves: tuple[ManifestRef, ...] = ()
    priority: tuple[ManifestRef, ...] = ()
    writer: int | None = None
    damage: str = ""
    tables: TableMapping | None = None
    seed: int | None = None

    @property
    def key(self) -> str:
        """The key of the first manifest; empty for `Seed`."""
        return self.saves[0].key if self.saves else ""


def shard_lineage(
    records: Mapping[int, RestoreRecord | None], saves: Iterable[SaveName], incarnation: int, layout: str
) -> tuple[tuple[Candidate, ...], tuple[ManifestRef, ...]]:
    """Return the complete saves of one shard and generation, newest first, and its priority saves, oldest first.

    `records` are the restore records by incarnation, None for an unreadable one; an incarnation without one never
    served. `saves` are the committed saves, in any order. Only incarnations below `incarnation` count. If the lineage
    ends at an unreadable record, the last candidate has that `damage`.
    """
    saves = tuple(saves)
    candidates: list[Candidate] = []
    priority: list[ManifestRef] = []  # newest first
    writer = max((number for number in records if number < incarnation), default=None)
    chosen: SaveName | None = None  # the save of `writer` that its child restored; None for the newest incarnation
    while writer is not None:
        own = (save for save in saves if save.writer == writer and (chosen is None or save.age <= chosen.age))
        for save in sorted(own, key=lambda save: save.age, reverse=True):
            ref = ManifestRef(save.manifest, "")
            if save.kind == "Priority":
                priority.append(ref)
            else:
                candidates.append(Candidate("Save", layout, save.step, (ref,), tuple(reversed(priority)), writer))
        record = records.get(writer)
        if record is None or not _is_consistent(record):
            candidates.append(_broken(writer, layout))
            break
        priority += reversed(record.replayed)
        assert record.parent_incarnation is None or record.parent_incarnation < writer, (
            "a lineage that does not go back"
        )
        writer = record.parent_incarnation
        chosen = parse_save(record.parent.key) if record.parent else None
    return tuple(candidates), tuple(reversed(priority))


def dense_lineage(saves: Iterable[SaveName], layout: str) -> tuple[Candidate, ...]:
    """Return the dense saves of one generation, newest group first, each group's newest step first.

    A later group began with the state that it names, so a late save of an earlier leader comes after its successor's.
    """
    return tuple(
        Candidate("Save", layout, save.step, (ManifestRef(save.manifest, ""),), writer=save.writer)
        for save in sorted(saves, key=lambda save: (save.writer, save.age), reverse=True)
    )


def _is_consistent(record: RestoreRecord) -> bool:
    """Return whether a record has no parent, or an earlier incarnation and a save of it."""
    if record.parent is None or record.parent_incarnation is None:
        return record.parent is None and record.parent_incarnation is None
    chosen = parse_save(record.parent.key)
    return chosen is not None and chosen.writer == record.parent_incarnation < record.incarnation


def _broken(writer: int, layout: str) -> Candidate:
    damage = f"has no readable restore record for incarnation {writer}: late saves of its parent cannot be excluded"
    return Candidate("Save", layout, 0, (ManifestRef("the lineage", ""),), writer=writer, damage=damage)


def candidates(store: Store, job: JobSpec, roster: ShardRoster, placement: Placement) -> tuple[Candidate, ...]:
    """Return the candidates for the incarnation in `roster`, newest first; never empty.

    The last one is the generation's anchor; without one the job's `restore_from`; without that `Seed`. Parts are not
    read. Raises StoreError; LayoutError or DamagedError for a `restore_from` that does not fit or is missing.
    """
    layout, generation = layout_hash(job.model), roster.counters.generation
    keys = tuple(entry.key for entry in store.list(shard_folder(job.job_uid, generation, roster.index)))
    records = {
        n: read_restore_record(store, key) for n, key in restore_records_in(keys).items() if n < roster.incarnation
    }
    saves, priority = shard_lineage(records, committed_in(keys), roster.incarnation, layout)
    start = shard_start(store, dense_start(store, job, roster.anchor), placement, roster.index)
    return (*saves, replace(start, priority=priority))


def dense_start(store: Store, job: JobSpec, anchor: AnchorRef | None) -> Candidate:
    """Return the dense state that a generation of a job starts from: this anchor, `restore_from`, or `Seed`.

    Raises for `restore_from` LayoutError if it does not fit, UnknownAnchorError if it names no anchor; StoreError.
    """
    model, key, rules = job.model, job.snapshots.restore_from, job.snapshots.by_name
    layout = layout_hash(model)
    if anchor is not None:
        return Candidate("Anchor", layout, anchor.step, (ManifestRef(anchor.key, anchor.digest),))
    if key is None:
        return Candidate("Seed", layout, 0)
    manifest, ref = read_named_anchor(store, key)
    start = Candidate("RestoreFrom", layout, 0, (ref,), seed=seed_of(manifest))
    if rules is None:
        check_fits(manifest, key, layout, model.table_ids)
        return start
    tables = map_tables(saved_model(manifest, key), model, rules, key)
    if (manifest.layout, tables.sources) == (layout, sources_of(model)):
        return start
    return replace(start, layout=manifest.layout, tables=tables)


def shard_start(store: Store, start: Candidate, placement: Placement, index: int) -> Candidate:
    """Return the start of shard `index` of `placement` that belongs to the start of the dense state.

    Its saves are those with some of the shard's places, and for other tables all. An unreadable anchor of this job is a
    candidate with that damage, because there may be newer saves before it. Raises DamagedError for `RestoreFrom`.
    """
    if start.kind == "Seed":
        return start
    try:
        manifest, _ = read_anchor_manifest(store, start.saves[0].key, start.saves[0].digest)
    except DamagedError as error:
        if start.kind == "RestoreFrom":
            raise
        return replace(start, damage=error.what)
    if start.tables is not None:
        return replace(start, saves=manifest.shards)
    return replace(start, saves=tuple(manifest.shards[i] for i in placement.holders(index, len(manifest.shards))))
