"""Successors, and the record of why they were needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from cpr_operator.api.status import MAX_FAILURES, MAX_RESTARTS, FailureRecord, Member, Shard, Status, Trainer
from cpr_operator.cluster.protocol import Event
from cpr_operator.desired.names import JobId, pod_name
from cpr_operator.failures import Failure
from cpr_operator.reconcile.incidents import begins_incident
from cpr_operator.reconcile.observe import Fact, Lost, member_name, role_of
from cpr_operator.reconcile.world import EventReason, Step, World, change

M = TypeVar("M", bound=Member)

_MESSAGE_CHARS = 1024


def successor(job: JobId, member: M, now: float, **fields: object) -> M:
    """The member's next incarnation, before its pod is created. Its number is used once, whatever becomes of it."""
    incarnation = member.incarnation + 1
    return change(  # type: ignore[no-any-return]
        member,
        incarnation=incarnation,
        pod=pod_name(job, role_of(member), member.index, incarnation),
        uid="",
        node="",
        host="",
        port_base=0,
        state="Pending",
        started_at=now,
        problem="",
        **fields,
    )


def record(world: World, step: Step, member: Member, failure: Failure, action: str) -> Step:
    """Count a failure, once per role, index and incarnation, and say so."""
    status, role = step.status, role_of(member)
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
    status = change(
        status,
        failures=(*status.failures, entry)[-MAX_FAILURES:],
        restart_times=(*(t for t in status.restart_times if t > oldest), *counted)[-MAX_RESTARTS:],
        restarts=status.restarts + 1,
    )
    name = member_name(role, member.index)
    message = f"{name}, incarnation {member.incarnation}: {failure.kind}: {failure.message}"
    return step.to(status, Event("Warning", EventReason.MEMBER_LOST, message, f"lost-{member.pod}"))


def edited(status: Status, edit: Callable[[Shard | Trainer], Shard | Trainer]) -> Status:
    """The status with every member as `edit` gives it; the same object where it gives all back as they were."""
    shards, trainers = tuple(map(edit, status.shards)), tuple(map(edit, status.trainers))
    if shards == status.shards and trainers == status.trainers:
        return status
    return change(status, shards=shards, trainers=trainers)  # type: ignore[no-any-return]


def with_shards(status: Status, entries: Mapping[int, Shard]) -> Status:
    """The status with these entries of shards, by index."""
    if not entries:
        return status
    return change(status, shards=tuple(entries.get(s.index, s) for s in status.shards))  # type: ignore[no-any-return]


def record_lost(world: World, step: Step, facts: Mapping[str, Fact], action: str) -> Step:
    """Record the failures of all that are lost in this pass."""
    for member in (*step.status.shards, *step.status.trainers):
        fact = facts[member_name(role_of(member), member.index)]
        if isinstance(fact, Lost):
            step = record(world, step, member, fact.failure, action)
    return step


def with_loss(status: Status, member: Member, **loss: object) -> Status:
    """The status with what a member's last failure has cost, now that it is known: fields of its record."""
    key = (role_of(member), member.index, None)
    failures = tuple(change(f, **loss) if (f.role, f.index, f.lost_samples) == key else f for f in status.failures)
    return change(status, failures=failures)  # type: ignore[no-any-return]


def replace_entry(status: Status, old: Member, new: Member) -> Status:
    """The status with `new` in the place of `old`."""
    field = "shards" if role_of(old) == "shard" else "trainers"
    entries = getattr(status, field)  # by index
    return status.model_copy(update={field: (*entries[: old.index], new, *entries[old.index + 1 :])})
