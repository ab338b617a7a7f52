"""Successors, and the record of why they were needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

from cpr_contract.manifests import RowUpdates
from cpr_operator.api.status import MAX_FAILURES, MAX_RESTARTS, FailureRecord, Member, Shard, Status, Trainer
from cpr_operator.cluster.protocol import Event
from cpr_operator.desired.names import JobId, pod_name
from cpr_operator.failures import Failure
from cpr_operator.reconcile.incidents import begins_incident
from cpr_operator.reconcile.observe import Fact, Lost
from cpr_operator.reconcile.world import EventReason, Step, World

M = TypeVar("M", Shard, Trainer)


class Edit(Protocol):
    """What becomes of any member's entry."""

    def __call__(self, member: M, /) -> M:
        """The entry after; itself if it stays as it is."""
        ...


_MESSAGE_CHARS = 1024


def successor(job: JobId, member: M, now: float) -> M:
    """The member's next incarnation, before its pod is created. Its number is used once, whatever becomes of it."""
    incarnation = member.incarnation + 1
    return member.evolve(
        incarnation=incarnation,
        pod=pod_name(job, member.role, member.index, incarnation),
        uid="",
        node="",
        host="",
        port_base=0,
        state="Pending",
        started_at=now,
        problem="",
    )


def record(world: World, step: Step, member: Member, failure: Failure, action: str) -> Step:
    """Count a failure, once per role, index and incarnation, and say so."""
    status, role = step.status, member.role
    known = {(f.role, f.index, f.incarnation) for f in status.failures}
    if (role, member.index, member.incarnation) in known:
        return step
    counts = begins_incident(status, member, failure, world.now)
    entry = FailureRecord(
        time=world.now,
        role=role,
        index=member.index,
        incarnation=member.incarnation,
        pod=member.pod,
        node=member.node,
        kind=failure.kind,
        reason=failure.reason[:64],
        message=failure.message[:_MESSAGE_CHARS],
        exit_code=failure.exit_code,
        counted=counts,
        action=action,
    )
    counted = (world.now,) if counts else ()
    oldest = world.now - world.job.spec.failure_policy.restart_limit.window_seconds
    status = status.evolve(
        failures=(*status.failures, entry)[-MAX_FAILURES:],
        restart_times=(*(t for t in status.restart_times if t > oldest), *counted)[-MAX_RESTARTS:],
        restarts=status.restarts + 1,
    )
    message = f"{member.name}, incarnation {member.incarnation}: {failure.kind}: {failure.message}"
    return step.to(status, Event("Warning", EventReason.MEMBER_LOST, message, f"lost-{member.pod}"))


def edited(status: Status, edit: Edit) -> Status:
    """The status with every member as `edit` gives it; the same object where it gives all back as they were."""
    shards, trainers = tuple(edit(s) for s in status.shards), tuple(edit(t) for t in status.trainers)
    if shards == status.shards and trainers == status.trainers:
        return status
    return status.evolve(shards=shards, trainers=trainers)


def with_shards(status: Status, entries: Mapping[int, Shard]) -> Status:
    """The status with these entries of shards, by index."""
    if not entries:
        return status
    return status.evolve(shards=tuple(entries.get(s.index, s) for s in status.shards))


def record_lost(world: World, step: Step, facts: Mapping[str, Fact], action: str) -> Step:
    """Record the failures of all that are lost in this pass."""
    for member in step.status.members:
        fact = facts[member.name]
        if isinstance(fact, Lost):
            step = record(world, step, member, fact.failure, action)
    return step


def with_loss(status: Status, member: Member, samples: int, row_updates: RowUpdates | None = None) -> Status:
    """The status with what a member's last failure has cost, now that it is known."""
    key = (member.role, member.index, None)

    def told(record: FailureRecord) -> FailureRecord:
        if (record.role, record.index, record.lost_samples) != key:
            return record
        record = record.evolve(lost_samples=samples)
        if row_updates is None:
            return record
        return record.evolve(lost_row_updates=row_updates.lost, lost_row_updates_exact=row_updates.exact)

    return status.evolve(failures=tuple(told(record) for record in status.failures))


def with_trainer(status: Status, entry: Trainer) -> Status:
    """The status with this entry of a trainer, in the place of the one of its index."""
    return status.evolve(trainers=tuple(entry if t.index == entry.index else t for t in status.trainers))
