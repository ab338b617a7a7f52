"""Reports of the fake data plane's processes on `/status`."""

from __future__ import annotations

from dataclasses import replace

from cpr_contract import CONTRACT_VERSION, env
from cpr_contract.manifests import RowUpdates
from cpr_contract.pinned_data import PinnedData
from cpr_contract.reports import SaveRef, ShardReport, ShardState, TrainerReport, TrainerState
from cpr_contract.roster import Counters, ShardRoster, TrainerRoster
from simulation.control_plane.processes import COMMIT_S, LOAD_S, SAVE_S, Plane, Shard, Trainer

#: The time of pin 0.
PINNED_AT = 1000.0


def shard_report(plane: Plane, shard: Shard) -> ShardReport:
    roster = shard.roster
    generation = shard.generation or (0 if shard.problem is None else roster.counters.generation)
    if shard.state is ShardState.BELOW_FLOOR:
        generation = roster.counters.generation
    return ShardReport(
        contract=CONTRACT_VERSION,
        job_uid=plane.spec.job_uid,
        index=roster.index,
        incarnation=roster.incarnation,
        counters=replace(roster.counters, generation=generation),
        state=shard.state,
        applied=(plane.step(shard.samples),),
        newest_save=shard.newest,
        restored_samples=shard.restored,
        resumed_samples=shard.resumed,
        lost=shard.lost,
        load_s=LOAD_S if shard.restored is not None else None,
        silent=_unresponsive_members(plane, shard, plane.spec.silence_s),
        overdue=_unresponsive_members(plane, shard, plane.spec.overdue_s),
        problem=shard.problem,
        row_updates=_row_updates(plane, shard),
        replayed_samples=shard.replayed,
    )


def spare_report(plane: Plane) -> ShardReport:
    """The report of a warm spare."""
    no_identity = ShardRoster(CONTRACT_VERSION, Counters(0, 0, 0), -1, 0, 0, True, 0, None, 0)  # noqa: FBT003
    return replace(shard_report(plane, Shard(no_identity, 0.0, ShardState.SPARE)), applied=(), row_updates=None)


def _row_updates(plane: Plane, shard: Shard) -> RowUpdates:
    """In this data plane each step changes one row of each shard."""
    pushed = plane.step(shard.samples)
    return RowUpdates((pushed,), pushed - shard.steps.bit_count())


def trainer_report(plane: Plane, trainer: Trainer) -> TrainerReport:
    roster, samples = trainer.roster, trainer.samples or 0
    leads = roster.leader == roster.index
    started = min(samples + 2 * plane.spec.data.batch_size, plane.total) if samples else 0
    offered = trainer.offered if trainer.state is TrainerState.BELOW_FLOOR else None
    dense = plane.store.dense.get(trainer.generation, [])
    newest = offered if offered is not None else (dense[-1].samples if dense else None)
    peers = sorted(roster.shards, key=lambda peer: peer.index)
    reported = [_reported(trainer, peer.index, peer.incarnation) for peer in peers]
    keeps = plane.spec.replay.enabled
    return TrainerReport(
        contract=CONTRACT_VERSION,
        job_uid=plane.spec.job_uid,
        index=roster.index,
        incarnation=roster.incarnation,
        counters=replace(roster.counters, generation=trainer.generation, group=trainer.group),
        state=trainer.state,
        step=plane.step(samples),
        samples=samples,
        samples_started=started,
        total_samples=plane.total,
        waiting_for=trainer.waiting_for if trainer.state is TrainerState.PAUSED else (),
        silent=_unresponsive_members(plane, trainer, plane.spec.silence_s),
        overdue=_unresponsive_members(plane, trainer, plane.spec.overdue_s),
        lost=trainer.lost,
        problem=trainer.problem,
        samples_per_s=plane.spec.data.batch_size / plane.step_s if plane.step_s else None,
        shard_saves=tuple(save for save, _ in reported) if leads or keeps else (),
        shard_incarnations=tuple(reporter for _, reporter in reported) if leads or keeps else (),
        forgotten=tuple(-1 if trainer.samples is None else trainer.keeps_after(i) for i in range(plane.spec.shards))
        if keeps
        else (),
        dense_save=SaveRef("dense", plane.step(newest), newest) if leads and newest is not None else None,
        anchors=tuple(plane.store.anchors) if leads else (),
        auc=samples / plane.total if leads else None,  # the step that it belongs to
        saves=plane.saves if leads else 0,
        save_stall_s=SAVE_S * plane.saves if leads else 0.0,
        commit_s=COMMIT_S if leads and plane.saves else None,
        met=trainer.met if leads else None,
        degraded_samples=trainer.degraded,
        new_files=trainer.new_files,
        sparse_updates=plane.spec.sparse_updates,
        data=_arrived(plane) if leads else None,
    )


def _arrived(plane: Plane) -> PinnedData | None:
    if plane.spec.data.follow is None:
        return None
    late = len(plane.late)
    return PinnedData(plane.pins, plane.total, plane.voids, PINNED_AT + plane.pins, plane.data_ended, late, plane.late)


def _unresponsive_members(plane: Plane, reporter: Shard | Trainer, for_s: float) -> tuple[str, ...]:
    """Members that run and have been silent for so long, as this process sees it."""
    roster, names = reporter.roster, []
    for pod, since in plane.heartbeat_missing_since.items():
        process = plane.process(pod)
        if process is None or plane.now - since < for_s or process is reporter:
            continue
        role = env.ROLE_SHARD if isinstance(process, Shard) else env.ROLE_TRAINER
        index, incarnation = process.roster.index, process.roster.incarnation
        if isinstance(roster, TrainerRoster):
            peers = roster.shards if role == env.ROLE_SHARD else roster.trainers
            named = any((peer.index, peer.incarnation) == (index, incarnation) for peer in peers)
        else:
            named = role == env.ROLE_TRAINER and _newest_trainer(plane, index) == incarnation
        if named:
            names.append(f"{role}/{index}")
    return tuple(names)


def _newest_trainer(plane: Plane, index: int) -> int:
    return max(t.roster.incarnation for t in plane.trainers.values() if t.roster.index == index)


def _reported(trainer: Trainer, index: int, incarnation: int) -> tuple[int, int]:
    """The newest save that this incarnation reported to the trainer, and the incarnation; -1 if there is none."""
    saved, reporter = trainer.reported.get(index, (-1, -1))
    return (saved, reporter) if reporter == incarnation else (-1, -1)
