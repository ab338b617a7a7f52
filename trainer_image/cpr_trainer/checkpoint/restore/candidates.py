"""Which saves of a shard there are, and what a generation starts from."""

from __future__ import annotations

from dataclasses import replace

from cpr_contract.manifests import ManifestRef, TableIds
from cpr_contract.roster import AnchorRef, ShardRoster
from cpr_contract.spec import JobSpec
from cpr_trainer.checkpoint.format.anchors import check_fits, read_anchor_manifest, seed_of
from cpr_trainer.checkpoint.format.errors import DamagedError
from cpr_trainer.checkpoint.format.names import committed_in, origins_in, shard_folder
from cpr_trainer.checkpoint.format.origins import read_origin
from cpr_trainer.checkpoint.restore.by_name import ByName, map_tables, saved_model, sources_of
from cpr_trainer.checkpoint.restore.lineage import Candidate, shard_lineage
from cpr_trainer.placement import Placement, layout_hash
from cpr_trainer.store import Store


def candidates(store: Store, job: JobSpec, roster: ShardRoster, placement: Placement) -> tuple[Candidate, ...]:
    """What the incarnation that `roster` names may restore, newest first; never empty.

    Ends with the generation's anchor; without one with the job's `restore_from`; without that with `Seed`. Parts are
    not looked at. Raises StoreError; LayoutError or DamagedError for a `restore_from` that does not fit or is gone.
    """
    layout, generation = layout_hash(job.model), roster.counters.generation
    keys = tuple(entry.key for entry in store.list(shard_folder(job.job_uid, generation, roster.index)))
    origins = {n: read_origin(store, key) for n, key in origins_in(keys).items() if n < roster.incarnation}
    line = shard_lineage(origins, committed_in(keys), roster.incarnation, layout)
    start = dense_start(
        store, roster.anchor, job.snapshots.restore_from, layout, ids=job.model.table_ids, by_name=ByName.of(job)
    )
    start = shard_start(store, start, placement, roster.index)
    return (*line.candidates, replace(start, priority=line.priority))


def dense_start(  # noqa: PLR0913 -- where a generation may start, and what has to fit
    store: Store,
    anchor: AnchorRef | None,
    restore_from: str | None,
    layout: str,
    *,
    ids: TableIds = (),
    by_name: ByName | None = None,
) -> Candidate:
    """Name the dense state that a generation starts from.

    Raises for `restore_from` LayoutError if it does not fit, DamagedError if it is not there or no anchor, StoreError.
    """
    if anchor is not None:
        return Candidate("Anchor", layout, anchor.step, (ManifestRef(anchor.key, anchor.digest),))
    if restore_from is None:
        return Candidate("Seed", layout, 0)
    manifest, ref = read_anchor_manifest(store, restore_from, "")
    seed = seed_of(manifest)
    if by_name is None:
        check_fits(manifest, restore_from, layout, ids)
        return Candidate("RestoreFrom", layout, 0, (ref,), seed=seed)
    tables = map_tables(saved_model(manifest, restore_from), by_name, restore_from)
    if (manifest.layout, tables.sources) == (layout, sources_of(by_name.model)):
        return Candidate("RestoreFrom", layout, 0, (ref,), seed=seed)
    return Candidate("RestoreFrom", manifest.layout, 0, (ref,), tables=tables, seed=seed)


def shard_start(store: Store, start: Candidate, placement: Placement, index: int) -> Candidate:
    """Name what shard `index` of `placement` starts from, where the dense state does from `start`.

    These are all saves that hold some of its places, and of other tables all there are. An anchor of this job that
    cannot be read makes a candidate with that damage: there may be newer saves before it. Raises DamagedError for
    `RestoreFrom`.
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
