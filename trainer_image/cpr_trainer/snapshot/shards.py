"""Which saves of a shard there are, and the record of what was chosen."""

from __future__ import annotations

from dataclasses import replace

from cpr_contract.manifests import ManifestRef, Origin, ShardManifest
from cpr_contract.roster import ShardRoster
from cpr_contract.spec import JobSpec
from cpr_trainer.placement import Placement, layout_hash
from cpr_trainer.snapshot.anchors import dense_start, shard_start
from cpr_trainer.snapshot.commit import read_document, write_once
from cpr_trainer.snapshot.errors import DamagedError, OvertakenError
from cpr_trainer.snapshot.lineage import Candidate, shard_lineage
from cpr_trainer.snapshot.names import claims_prefix, committed_in, cut_of_shard, origin_key, origins_in, shard_folder
from cpr_trainer.store import MissingError, Store


def candidates(store: Store, job: JobSpec, roster: ShardRoster, placement: Placement) -> tuple[Candidate, ...]:
    """What the incarnation that `roster` names may restore, newest first; never empty.

    Ends with the generation's anchor; without one with the job's `restore_from`; without that with `Seed`. Parts are
    not looked at. Raises StoreError; LayoutError or DamagedError for a `restore_from` that does not fit or is gone.
    """
    layout, generation = layout_hash(job.model), roster.counters.generation
    keys = tuple(entry.key for entry in store.list(shard_folder(job.job_uid, generation, roster.index)))
    origins = {n: _read_origin(store, key) for n, key in origins_in(keys).items() if n < roster.incarnation}
    line = shard_lineage(origins, committed_in(keys), roster.incarnation, layout)
    start = dense_start(store, roster.anchor, job.snapshots.restore_from, layout)
    start = shard_start(store, start, placement, roster.index)
    return (*line.candidates, replace(start, priority=line.priority))


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


def write_origin(store: Store, origin: Origin) -> None:
    """Record what an incarnation restored; done before it serves. Writing the same again is success.

    Raises StoreError; ExistsError if another process recorded another choice under this incarnation.
    """
    write_once(store, origin_key(origin.job_uid, origin.generation, origin.index, origin.incarnation), origin)


def claim(store: Store, roster: ShardRoster, job_uid: str) -> None:
    """Record that an incarnation is about to list saves: what is committed after that it may not find.

    Raises StoreError.
    """
    prefix = claims_prefix(job_uid, roster.counters.generation, roster.index)
    store.put(f"{prefix}{roster.incarnation:04d}", b"{}")


def check_claims(store: Store, saved: ShardManifest) -> None:
    """Raise OvertakenError if a later incarnation may not have found this save, which is committed. Raises StoreError.

    Whoever claims after this listing lists after it, too, and finds the save.
    """
    prefix = claims_prefix(saved.job_uid, saved.generation, saved.index)
    newest = max((int(entry.key.removeprefix(prefix)) for entry in store.list(prefix)), default=0)
    if newest > saved.incarnation:
        what = f"The save of step {saved.step} came after incarnation {newest} had begun to restore"
        raise OvertakenError(f"{what}.", "Nothing is to be done: that incarnation goes on from an earlier save.")


def _read_origin(store: Store, key: str) -> Origin | None:
    try:
        origin, _ = read_document(store, Origin, key)
    except DamagedError:
        return None
    place = origin_key(origin.job_uid, origin.generation, origin.index, origin.incarnation)
    return origin if place == key else None
