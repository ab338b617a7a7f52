"""Warm spares: their pods, the choice of one for a lost shard, and their number.

A spare is a pod of the role shard that no roster names yet. Its promotion is a change of the status like every other
decision: the shard's entry names the spare's pod, and the roster follows. The status alone, and no label, decides
which pods are spares.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cpr_contract import env
from cpr_contract.reports import ShardReport, ShardState
from cpr_operator.api.member_status import SparePhase
from cpr_operator.api.status import Shard, Spare, Status
from cpr_operator.cluster.protocol import Event
from cpr_operator.cluster.views import PodView
from cpr_operator.desired.names import spare_name
from cpr_operator.failures import failure_of
from cpr_operator.reconcile.kueue import spares_in
from cpr_operator.reconcile.members import with_shards
from cpr_operator.reconcile.types import EventReason, ReconcileInput, ReconcileState, Report

#: Seconds between the creation of a spare that was lost and of its replacement. A spare that always fails costs a pod
#: each time.
PAUSE_S = 30.0
#: The same for one that was never seen: a list may lag behind.
UNSEEN_S = 5.0


@dataclass(frozen=True, slots=True)
class Choice:
    """The spare that takes a shard's place, with the number of its processes; or the reason why none does."""

    pod: PodView | None
    processes: int = 1
    reason: str = ""


def is_spare(pod: PodView) -> bool:
    """Return whether the pod has the labels of a spare, which it keeps until its first roster."""
    return pod.role == env.ROLE_SPARE


def as_members(pods: Sequence[PodView], status: Status) -> tuple[PodView, ...]:
    """Return the pods with the roles that the status gives them: a promoted spare is a shard before its roster."""
    named = {shard.pod: shard for shard in status.shards}
    return tuple(
        replace(pod, role=env.ROLE_SHARD, index=shard.index, incarnation=shard.incarnation)
        if is_spare(pod) and (shard := named.get(pod.name))
        else pod
        for pod in pods
    )


def waiting(observed: ReconcileInput) -> tuple[PodView, ...]:
    """Return the pods of the spares that the status names."""
    names = {spare.pod for spare in observed.before.spares}
    return tuple(pod for pod in observed.pods if pod.name in names and is_spare(pod))


def spare_is_needed(observed: ReconcileInput) -> bool:
    """Return whether a shard's pod is lost: a spare's answer then saves the start of a new pod."""
    return any(failure_of(observed.pods_by_uid.get(shard.uid)) for shard in observed.before.shards if shard.uid)


def superfluous(observed: ReconcileInput, after: Status) -> Iterator[PodView]:
    """Yield pods with the labels of a spare that the status does not name: too many, ended, or fenced off.

    Fenced-off spares were promoted, and replaced before their labels changed.
    """
    named = {spare.pod for spare in after.spares} | {shard.pod for shard in after.shards}
    for pod in observed.pods:
        if is_spare(pod) and pod.deleting_until is None and pod.name not in named:
            yield pod


def observe_spares(state: ReconcileState) -> ReconcileState:
    """Update the entries of spares from their pods and reports."""
    if not state.status.spares:
        return state
    pods = {pod.name: pod for pod in waiting(state.observed)}
    spares = tuple(_seen(spare, pods.get(spare.pod), state.observed) for spare in state.status.spares)
    return state.to(state.status.evolve(spares=spares))


def promote(state: ReconcileState) -> ReconcileState:
    """Give each shard with a new incarnation a spare's pod instead of a new one."""
    before = {shard.index: shard.incarnation for shard in state.before.shards}
    for shard in state.status.shards:
        needs_pod = not shard.uid and before.get(shard.index, shard.incarnation) != shard.incarnation
        if needs_pod and (state.spec.shards.spares or state.status.spares):
            state = _promote(state, shard)
    return state


def choose(spares: Sequence[Spare], observed: ReconcileInput, shard: Shard) -> Choice:
    """Return the first spare that can take the shard's place now."""
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
    """Create spares up to the number in the spec, once the job runs without a recovery."""
    status, allowed = state.status, _allowed(state)
    spares, number = status.spares[:allowed], status.last_spare
    if status.phase == "Running" and status.recovery is None:
        taken = {pod.name for pod in state.observed.pods}
        # One that was never seen needs no pause before its replacement.
        spares = tuple(s for s in spares if s.state != "Lost" or (s.uid and state.now < s.started_at + PAUSE_S))
        while len(spares) < allowed:
            number += 1
            name = spare_name(state.observed.job.id, number)
            if name not in taken:
                spares = (*spares, Spare(number=number, pod=name, started_at=state.now))
    return state.to(status.evolve(spares=spares, last_spare=number))


def _seen(spare: Spare, pod: PodView | None, observed: ReconcileInput) -> Spare:
    if pod is None:
        never = observed.now >= spare.started_at + UNSEEN_S and spare.pod not in observed.refusals
        return spare.evolve(state="Lost") if spare.uid or never else spare
    return spare.evolve(uid=pod.uid, node=pod.node, state=_phase(pod, observed.reports.get(pod.uid)))


def _phase(pod: PodView, report: Report | None) -> SparePhase:
    if pod.ended or pod.deleting_until is not None or failure_of(pod):
        return "Lost"
    if pod.phase != "Running":
        return "Pending"
    return "Ready" if isinstance(report, ShardReport) and report.state is ShardState.SPARE else "Starting"


def _unfit(pod: PodView | None, report: Report | None, shard: Shard, observed: ReconcileInput) -> str:
    """Return the reason why a spare cannot take the shard's place now; empty if it can."""
    if pod is None or _phase(pod, None) == "Lost":
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
        processes=choice.processes,
        restarts=pod.restarts,
    )
    status = with_shards(status, {shard.index: promoted})
    status = status.evolve(spares=tuple(spare for spare in status.spares if spare.pod != pod.name))
    message = f"{name}, is the spare {pod.name}, which was there already"
    event = Event("Normal", EventReason.SPARE_PROMOTED, message, f"promoted-{pod.name}")
    repaired = (shard.role, shard.index, shard.incarnation - 1, 0)
    failures = tuple(f.evolve(tier="Spare") if f.identity == repaired else f for f in status.failures)
    return state.to(status.evolve(failures=failures), event)


def _allowed(state: ReconcileState) -> int:
    """Return the number of spares: in a queue at most those with quota, and no new ones while that is unknown."""
    requested, runtime, queue = state.spec.shards.spares, state.status.runtime, state.observed.queue
    if runtime is None or runtime.quota is None:
        return requested
    if queue is None or queue.workload is None:
        return min(requested, len(state.status.spares))
    return min(requested, spares_in(queue.workload))
