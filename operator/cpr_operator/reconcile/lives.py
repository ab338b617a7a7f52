"""Processes that ended and were followed by others in the same pod: what the operator hears of it, after the fact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

from cpr_contract.reports import ShardReport, TrainerReport
from cpr_operator.api.status import FailureRecord, Shard, Trainer
from cpr_operator.cluster.views import PodView
from cpr_operator.failures import Failure, Kind, restarted
from cpr_operator.reconcile.members import record_restart, with_shards, with_trainer
from cpr_operator.reconcile.types import Active, ReconcileState


def record_restarts(state: ReconcileState) -> ReconcileState:
    """Record each life of a member that has ended, once. Nothing is reserved, charged or replaced for it.

    How long a member was away only its pod knows. It may tell later than that it was.
    """
    state = _with_times(state)
    for shard in state.status.shards:
        pod, report = _alive(state, shard), state.report_of(shard)
        # Containers are counted as the kubelet tells, and processes within them as the shard does. The shard may tell
        # of a container's end before the kubelet does: that end is recorded when its exit code and reason are known.
        restarts = max(shard.restarts, pod.restarts if pod else 0)
        within = max(shard.lives - 1, 0) - shard.restarts
        if isinstance(report, ShardReport):
            within = max(within, report.lives - 1 - report.restarts)
        lives = 1 + within + restarts
        ends = [restarted(pod)] * (restarts - shard.restarts) if pod else []
        state = _record(state, shard, lives, "with all rows", ends)
        if lives > max(shard.lives, 1):
            known = shard.evolve(lives=lives, restarts=restarts)
            state = state.to(with_shards(state.status, {shard.index: known}))
    for trainer in state.status.trainers:
        report = state.report_of(trainer)
        lives = report.lives if isinstance(report, TrainerReport) else 0
        state = _record(state, trainer, lives, "after the last complete step")
        if lives > trainer.lives:
            state = state.to(with_trainer(state.status, trainer.evolve(lives=lives)))
    return state


def _record(
    state: ReconcileState, member: Shard | Trainer, lives: int, where: str, containers: Sequence[Failure] = ()
) -> ReconcileState:
    """Record the lives that have ended; the last ones with their `containers`, the others by themselves."""
    told = _told(state, member)
    ended = range(max(member.lives, 1), lives)
    for life in ended:
        took_s = told.get(life)
        within = "" if took_s is None else f" within {took_s:.2f} s"
        on = f"the next one went on {where}{within}: life {life + 1}"
        failure = Failure(Kind.CRASHED, "RestartedInPlace", f"the process ended, and {on}", ended=False)
        if lives - life <= len(containers):
            end = containers[life - lives]
            failure = replace(end, message=f"{end.message}; its container began again, and {on}", ended=False)
        state = record_restart(state, member, failure, life, took_s)
    return state


def _alive(state: ReconcileState, shard: Shard) -> PodView | None:
    """The shard's pod, if nothing is wrong with it."""
    fact = state.facts.get(shard.name)
    return fact.pod if isinstance(fact, Active) else None


def _with_times(state: ReconcileState) -> ReconcileState:
    """With the times of lives that were recorded before they were told."""
    status = state.status
    if all(record.recovery_seconds is not None or not record.life for record in status.failures):
        return state
    told = {(m.role, m.index, m.incarnation): _told(state, m) for m in status.members}

    def timed(record: FailureRecord) -> FailureRecord:
        if not record.life or record.recovery_seconds is not None:
            return record
        times = told.get((record.role, record.index, record.incarnation), {})
        return record.evolve(recovery_seconds=times.get(record.life))

    return state.to(status.evolve(failures=tuple(timed(record) for record in status.failures)))


def _told(state: ReconcileState, member: Shard | Trainer) -> Mapping[int, float]:
    """How long after the end of a life its successor worked, by lives, as the member's own pod tells."""
    report = state.report_of(member)
    return {} if report is None else {life: took_s for life, took_s in report.in_place_s if 0 <= took_s < inf}
