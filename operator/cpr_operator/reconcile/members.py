"""Entries of members in the status: the next incarnation, the record of failures, and restarts in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Protocol, TypeVar

from cpr_contract.manifests import RowUpdates
from cpr_contract.reports import ShardReport, TrainerReport
from cpr_operator.api.status import MAX_FAILURES, MAX_RESTARTS, FailureRecord, Member, Shard, Status, Trainer
from cpr_operator.cluster.protocol import Event
from cpr_operator.cluster.views import PodView
from cpr_operator.desired.names import pod_name
from cpr_operator.failures import Failure, Kind, restarted
from cpr_operator.reconcile.types import Active, EventReason, ReconcileInput, ReconcileState

M = TypeVar("M", Shard, Trainer)

#: Failures belong to one incident if they are seen within this time, in seconds, of the first.
INCIDENT_S = 10.0
_MESSAGE_CHARS = 1024


class Edit(Protocol):
    """A change of any member's entry."""

    def __call__(self, member: M, /) -> M:
        """Return the changed entry, or the same one."""
        ...


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a failure: losses, and samples that trainers pushed again. `rebuilt`: from parity of other shards."""

    samples: int
    row_updates: RowUpdates | None = None
    replayed: int = 0
    replayed_in_order: bool = True
    rebuilt: bool = False


def replacement(observed: ReconcileInput, member: M) -> M:
    """Return the member's next incarnation, before its pod is created. Its number is never used again."""
    incarnation = member.incarnation + 1
    return member.evolve(
        incarnation=incarnation,
        pod=pod_name(observed.job.id, member.role, member.index, incarnation),
        uid="",
        node="",
        host="",
        port_base=0,
        state="Pending",
        started_at=observed.now,
        processes=0,
        restarts=0,
        problem="",
    )


def edited(status: Status, edit: Edit) -> Status:
    """Return the status with `edit` applied to every member; the same object if no entry changed."""
    shards, trainers = tuple(edit(s) for s in status.shards), tuple(edit(t) for t in status.trainers)
    if shards == status.shards and trainers == status.trainers:
        return status
    return status.evolve(shards=shards, trainers=trainers)


def with_shards(status: Status, entries: Mapping[int, Shard]) -> Status:
    """Return the status with these entries of shards, by index."""
    if not entries:
        return status
    return status.evolve(shards=tuple(entries.get(s.index, s) for s in status.shards))


def with_trainer(status: Status, entry: Trainer) -> Status:
    """Return the status with this entry of a trainer."""
    return status.evolve(trainers=tuple(entry if t.index == entry.index else t for t in status.trainers))


def record(state: ReconcileState, member: Member, failure: Failure, action: str) -> ReconcileState:
    """Record the failure of a pod, with an event, once per role, index and incarnation."""
    status, role = state.status, member.role
    known = {each.identity for each in status.failures}
    if (role, member.index, member.incarnation, 0) in known:
        return state
    state = _entered(state, _entry(state, member, failure, action))
    message = f"{member.name}, incarnation {member.incarnation}: {failure.kind}: {failure.message}"
    event = Event("Warning", EventReason.MEMBER_LOST, message, f"lost-{member.pod}")
    return state.to(state.status.evolve(restarts=state.status.restarts + 1), event)


def record_lost(state: ReconcileState, action: str) -> ReconcileState:
    """Record the failures of all members that are lost now."""
    for member, failure in state.lost:
        state = record(state, member, failure, action)
    return state


def record_restarts(state: ReconcileState) -> ReconcileState:
    """Record each process that ended and was followed by another one in the same pod, once.

    Such a restart loses nothing, so it reserves, charges and replaces nothing. Its duration is in the pod's report,
    possibly in a later one than the restart itself.
    """
    state = _with_durations(state)
    for shard in state.status.shards:
        fact, report = state.facts.get(shard.name), state.report_of(shard)
        pod: PodView | None = fact.pod if isinstance(fact, Active) else None
        # The kubelet counts containers, and the shard counts processes within them. The shard may report the end of a
        # container before the kubelet does: that end is recorded once its exit code and reason are known.
        restarts = max(shard.restarts, pod.restarts if pod else 0)
        within = max(shard.processes - 1, 0) - shard.restarts
        if isinstance(report, ShardReport):
            within = max(within, report.lives - 1 - report.restarts)
        count = 1 + within + restarts
        ends = [restarted(pod)] * (restarts - shard.restarts) if pod else []
        state = _record_restarts(state, shard, count, "with all rows", ends)
        if count > max(shard.processes, 1):
            known = shard.evolve(processes=count, restarts=restarts)
            state = state.to(with_shards(state.status, {shard.index: known}))
    for trainer in state.status.trainers:
        report = state.report_of(trainer)
        count = report.lives if isinstance(report, TrainerReport) else 0
        state = _record_restarts(state, trainer, count, "after the last complete step")
        if count > trainer.processes:
            state = state.to(with_trainer(state.status, trainer.evolve(processes=count)))
    return state


def with_cost(status: Status, member: Member, cost: Cost) -> Status:
    """Return the status with the cost of a member's last failure."""
    key = (member.role, member.index, None)

    def with_its_cost(record: FailureRecord) -> FailureRecord:
        if (record.role, record.index, record.lost_samples) != key:
            return record
        record = record.evolve(
            lost_samples=cost.samples,
            replayed_samples=cost.replayed,
            replayed_in_order=cost.replayed_in_order,
            tier="Parity" if cost.rebuilt else record.tier,
        )
        if cost.row_updates is None:
            return record
        return record.evolve(lost_row_updates=cost.row_updates.lost, lost_row_updates_exact=cost.row_updates.exact)

    return status.evolve(failures=tuple(with_its_cost(record) for record in status.failures))


def counts(member: Member, failure: Failure) -> bool:
    """Return whether a failure counts towards the restart limit.

    A process that was ended by SIGTERM without a deletion counts if it had not worked since the member was replaced.
    Otherwise a probe of the template that always fails would restart it without a limit.
    """
    return failure.counts_as_restart or (failure.unprompted and member.lost_at is not None)


def begins_incident(status: Status, member: Member, failure: Failure, now: float) -> bool:
    """Return whether a failure counts: its kind does, and it does not belong to an incident that is counted already.

    A member belongs to an incident once: if it fails again, however soon, another incident begins.
    """
    if not counts(member, failure):
        return False
    similar = [f for f in status.failures if (f.role, f.kind) == (member.role, failure.kind)]
    if not similar:
        return True
    # The first record of a large incident may be missing: only the last failures are kept.
    first = next((n for n, record in reversed([*enumerate(similar)]) if record.counted), 0)
    return similar[first].time < now - INCIDENT_S or member.index in {record.index for record in similar[first:]}


def _entry(state: ReconcileState, member: Member, failure: Failure, action: str) -> FailureRecord:
    return FailureRecord(
        time=state.now,
        role=member.role,
        index=member.index,
        incarnation=member.incarnation,
        pod=member.pod,
        node=member.node,
        kind=failure.kind,
        reason=failure.reason[:64],
        message=failure.message[:_MESSAGE_CHARS],
        exit_code=failure.exit_code,
        counted=begins_incident(state.status, member, failure, state.now),
        action=action,
    )


def _entered(state: ReconcileState, entry: FailureRecord) -> ReconcileState:
    """Append the failure, and count its incident."""
    status, now = state.status, state.now
    oldest = now - state.spec.failure_policy.restart_limit.window_seconds
    counted = (now,) if entry.counted else ()
    return state.to(
        status.evolve(
            failures=(*status.failures, entry)[-MAX_FAILURES:],
            restart_times=(*(t for t in status.restart_times if t > oldest), *counted)[-MAX_RESTARTS:],
        )
    )


def _with_durations(state: ReconcileState) -> ReconcileState:
    """Add the durations of restarts that were recorded before a report had them."""
    status = state.status
    if all(record.recovery_seconds is not None or not record.process for record in status.failures):
        return state
    reported = {(m.role, m.index, m.incarnation): _durations(state, m) for m in status.members}

    failures = tuple(
        record.evolve(recovery_seconds=reported.get((record.role, record.index, record.incarnation), {}).get(process))
        if (process := record.process) and record.recovery_seconds is None
        else record
        for record in status.failures
    )
    return state.to(status.evolve(failures=failures))


def _durations(state: ReconcileState, member: Shard | Trainer) -> Mapping[int, float]:
    """Return the seconds from the end of each process until its successor worked, from the member's own report."""
    report = state.report_of(member)
    return {} if report is None else {process: took_s for process, took_s in report.in_place_s if 0 <= took_s < inf}


def _record_restarts(
    state: ReconcileState, member: Shard | Trainer, count: int, where: str, containers: Sequence[Failure] = ()
) -> ReconcileState:
    """Record the processes that have ended before the `count`th; `containers` are the failures of the last ones."""
    durations = _durations(state, member)
    for process in range(max(member.processes, 1), count):
        took_s = durations.get(process)
        within = "" if took_s is None else f" within {took_s:.2f} s"
        how = f"restarted in place {where}{within}: process {process + 1}"
        failure = Failure(Kind.CRASHED, "RestartedInPlace", f"the process ended and {how}", ended=False)
        if count - process <= len(containers):
            end = containers[process - count]
            failure = replace(end, message=f"{end.message}; its container {how}", ended=False)
        entry = _entry(state, member, failure, "RestartInPlace").evolve(
            process=process, tier="InPlace", lost_samples=0, lost_row_updates=0, recovery_seconds=took_s
        )
        state = _entered(state, entry)
        message = f"{member.name}, incarnation {member.incarnation}: {failure.message}"
        event = Event("Warning", EventReason.RESTARTED_IN_PLACE, message, f"life-{member.pod}-{process}")
        state = state.to(state.status, event)
    return state
