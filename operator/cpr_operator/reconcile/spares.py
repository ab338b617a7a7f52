"""Warm spares: which one takes the place of a lost shard, and how many there are.

A spare is a pod of the role shard that no roster names yet. Promotion is a line of the status like every decision: the
shard's entry names the spare's pod, and the pod is told afterwards. So the status alone says who is who.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cpr_contract.reports import ShardReport, ShardState
from cpr_operator.api.members import SparePhase
from cpr_operator.api.status import Shard, Spare, Status
from cpr_operator.cluster.protocol import Event
from cpr_operator.cluster.views import PodView
from cpr_operator.desired.names import spare_name
from cpr_operator.failures import Failure, classify
from cpr_operator.reconcile.members import with_shards
from cpr_operator.reconcile.queue import spares_in
from cpr_operator.reconcile.spare_pods import waiting
from cpr_operator.reconcile.types import EventReason, ReconcileInput, ReconcileState, Report

#: A spare that was lost is made anew this long after it was made: one that cannot live costs a pod each time.
PAUSE_S = 30.0
#: And one that was never seen: a list may lag behind.
UNSEEN_S = 5.0


@dataclass(frozen=True, slots=True)
class Choice:
    """The spare that takes a shard's place, with its report; or why none does."""

    pod: PodView | None
    lives: int = 1
    reason: str = ""


def observe_spares(state: ReconcileState) -> ReconcileState:
    """The status with what the pods and reports of spares tell."""
    if not state.status.spares:
        return state
    pods = {pod.name: pod for pod in waiting(state.observed)}
    spares = tuple(_seen(spare, pods.get(spare.pod), state.observed) for spare in state.status.spares)
    return state.to(state.status.evolve(spares=spares))


def promote(state: ReconcileState) -> ReconcileState:
    """Give each shard whose next incarnation was decided in this pass a spare's pod instead of a new one."""
    before = {shard.index: shard.incarnation for shard in state.before.shards}
    for shard in state.status.shards:
        wants = not shard.uid and before.get(shard.index, shard.incarnation) != shard.incarnation
        if wants and (state.spec.shards.spares or state.status.spares):
            state = _promote(state, shard)
    return state


def choose(spares: Sequence[Spare], observed: ReconcileInput, shard: Shard) -> Choice:
    """The first spare that can take the shard's place now."""
    pods = {pod.name: pod for pod in waiting(observed)}
    reasons = []
    for spare in spares:
        pod = pods.get(spare.pod)
        report = observed.reports.get(pod.uid) if pod else None
        why_not = _unfit(pod, report, shard, observed)
        if pod is not None and not why_not:
            return Choice(pod, report.lives if isinstance(report, ShardReport) else 1)
        reasons.append(f"{spare.pod} {why_not}")
    return Choice(None, reason="; ".join(reasons) or "there is none left")


def maintain_spares(state: ReconcileState) -> ReconcileState:
    """Make spares up to the number that the spec asks for, once nothing more urgent is under way."""
    status, wanted = state.status, _allowed(state)
    spares = status.spares[:wanted]
    if status.phase == "Running" and status.recovery is None:
        spares = tuple(spare for spare in spares if not _is_over(spare, state.now))
        state, made = _made(state, wanted - len(spares))
        spares += made
    return state.to(state.status.evolve(spares=spares))


def _allowed(state: ReconcileState) -> int:
    """How many spares there may be: not more than a job in a queue has quota for, and no more while that is unknown."""
    wanted, runtime, queue = state.spec.shards.spares, state.status.runtime, state.observed.queue
    if runtime is None or runtime.quota is None:
        return wanted
    if queue is None or queue.workload is None:
        return min(wanted, len(state.status.spares))
    return min(wanted, spares_in(queue.workload))


def _seen(spare: Spare, pod: PodView | None, observed: ReconcileInput) -> Spare:
    if pod is None:
        never = observed.now >= spare.started_at + UNSEEN_S and spare.pod not in observed.refusals
        return spare.evolve(state="Lost") if spare.uid or never else spare
    return spare.evolve(uid=pod.uid, node=pod.node, state=_state(pod, observed.reports.get(pod.uid)))


def _state(pod: PodView, report: Report | None) -> SparePhase:
    if pod.ended or pod.deleting_until is not None or isinstance(classify(pod), Failure):
        return "Lost"
    if pod.phase != "Running":
        return "Pending"
    return "Ready" if isinstance(report, ShardReport) and report.state is ShardState.SPARE else "Starting"


def _is_over(spare: Spare, now: float) -> bool:
    """Whether it is gone and its pause is over. One that never was caused no trouble."""
    return spare.state == "Lost" and (not spare.uid or now >= spare.started_at + PAUSE_S)


def _unfit(pod: PodView | None, report: Report | None, shard: Shard, observed: ReconcileInput) -> str:
    """Why a spare cannot take the shard's place now; empty if it can."""
    if pod is None or _state(pod, None) == "Lost":
        return "is gone"
    if pod.phase != "Running" or not pod.host:
        return "does not run yet"
    if pod.node and pod.node in {shard.avoid, observed.lost_node}:
        return f"is on {pod.node}, which does not answer"
    if not isinstance(report, ShardReport):
        return "does not answer"
    if report.job_uid != observed.job.id.uid or report.state is not ShardState.SPARE:
        return "is not warm yet"
    return ""


def _promote(state: ReconcileState, shard: Shard) -> ReconcileState:
    status, name = state.status, f"{shard.name}, incarnation {shard.incarnation}"
    choice = choose(status.spares, state.observed, shard)
    pod = choice.pod
    if pod is None:
        message = f"{name}, is a new pod, because no spare can take its place: {choice.reason}"
        return state.to(status, Event("Normal", EventReason.NO_SPARE, message, f"no-spare-{shard.pod}"))
    promoted = shard.evolve(
        pod=pod.name,
        uid=pod.uid,
        node=pod.node,
        host=pod.host,
        port_base=pod.port_base,
        state="Starting",
        lives=choice.lives,
        restarts=pod.restarts,
    )
    status = with_shards(status, {shard.index: promoted})
    status = status.evolve(spares=tuple(spare for spare in status.spares if spare.pod != pod.name))
    message = f"{name}, is the spare {pod.name}, which was there already"
    event = Event("Normal", EventReason.SPARE_PROMOTED, message, f"promoted-{pod.name}")
    return state.to(_with_tier(status, shard), event)


def _with_tier(status: Status, shard: Shard) -> Status:
    """The status in which the failures that the shard is recovered from say by what."""
    failures = tuple(
        f.evolve(tier="Spare")
        if (f.role, f.index, f.incarnation, f.life) == (shard.role, shard.index, shard.incarnation - 1, 0)
        else f
        for f in status.failures
    )
    return status.evolve(failures=failures)


def _made(state: ReconcileState, count: int) -> tuple[ReconcileState, tuple[Spare, ...]]:
    """So many new spares, whose names nobody has."""
    job, number, made = state.observed.job.id, state.status.last_spare, list[Spare]()
    taken = {pod.name for pod in state.observed.pods}
    while len(made) < count:
        number += 1
        name = spare_name(job, number)
        if name not in taken:
            made.append(Spare(number=number, pod=name, started_at=state.now))
    return state.to(state.status.evolve(last_spare=number)), tuple(made)
