"""Entries of members: the next incarnation, the record of failures, and the budget's account."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from cpr_contract.manifests import RowUpdates
from cpr_operator.api.status import (
    MAX_FAILURES,
    MAX_RESTARTS,
    Budget,
    Dense,
    FailureRecord,
    Member,
    Shard,
    Status,
    Trainer,
)
from cpr_operator.cluster.protocol import Event
from cpr_operator.desired.names import pod_name
from cpr_operator.failures import Failure
from cpr_operator.ledger import Ledger, shown
from cpr_operator.reconcile.types import EventReason, Lost, ReconcileInput, ReconcileState
from cpr_operator.recovery.account import Account

M = TypeVar("M", Shard, Trainer)


_MESSAGE_CHARS = 1024
#: Failures of one incident are seen within this time, in seconds, of the first.
INCIDENT_S = 10.0


class Edit(Protocol):
    """What becomes of any member's entry."""

    def __call__(self, member: M, /) -> M:
        """The entry after; itself if it stays as it is."""
        ...


def replacement(observed: ReconcileInput, member: M) -> M:
    """The member's next incarnation, before its pod is created. Its number is used once, whatever becomes of it."""
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
        lives=0,
        restarts=0,
        problem="",
    )


def record(state: ReconcileState, member: Member, failure: Failure, action: str) -> ReconcileState:
    """Count the failure of a pod, once per role, index and incarnation, and say so."""
    status, role = state.status, member.role
    known = {(f.role, f.index, f.incarnation, f.life) for f in status.failures}
    if (role, member.index, member.incarnation, 0) in known:
        return state
    state = _entered(state, _entry(state, member, failure, action))
    message = f"{member.name}, incarnation {member.incarnation}: {failure.kind}: {failure.message}"
    event = Event("Warning", EventReason.MEMBER_LOST, message, f"lost-{member.pod}")
    return state.to(state.status.evolve(restarts=state.status.restarts + 1), event)


def record_restart(
    state: ReconcileState, member: Member, failure: Failure, life: int, took_s: float | None
) -> ReconcileState:
    """Count the end of one life of a member, after which the next one went on in place: nothing was lost with it.

    `took_s`: how long after that it worked again, if its pod has told.
    """
    entry = _entry(state, member, failure, "RestartInPlace").evolve(
        life=life, tier="InPlace", lost_samples=0, lost_row_updates=0, recovery_seconds=took_s
    )
    state = _entered(state, entry)
    message = f"{member.name}, incarnation {member.incarnation}: {failure.message}"
    return state.to(
        state.status, Event("Warning", EventReason.RESTARTED_IN_PLACE, message, f"life-{member.pod}-{life}")
    )


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
    """The failure among the others, and in the count of incidents."""
    status, now = state.status, state.now
    oldest = now - state.spec.failure_policy.restart_limit.window_seconds
    counted = (now,) if entry.counted else ()
    return state.to(
        status.evolve(
            failures=(*status.failures, entry)[-MAX_FAILURES:],
            restart_times=(*(t for t in status.restart_times if t > oldest), *counted)[-MAX_RESTARTS:],
        )
    )


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


def record_lost(state: ReconcileState, action: str) -> ReconcileState:
    """Record the failures of all that are lost in this pass."""
    for member in state.status.members:
        fact = state.facts[member.name]
        if isinstance(fact, Lost):
            state = record(state, member, fact.failure, action)
    return state


@dataclass(frozen=True, slots=True)
class Cost:
    """What a failure has cost: samples and row updates that are lost, and samples that trainers pushed again.

    `rebuilt` says that the shard's rows were computed from other shards.
    """

    samples: int
    row_updates: RowUpdates | None = None
    replayed: int = 0
    replayed_in_order: bool = True
    rebuilt: bool = False


def with_cost(status: Status, member: Member, cost: Cost) -> Status:
    """The status with what a member's last failure has cost, now that it is known."""
    key = (member.role, member.index, None)

    def told(record: FailureRecord) -> FailureRecord:
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

    return status.evolve(failures=tuple(told(record) for record in status.failures))


def with_trainer(status: Status, entry: Trainer) -> Status:
    """The status with this entry of a trainer, in the place of the one of its index."""
    return status.evolve(trainers=tuple(entry if t.index == entry.index else t for t in status.trainers))


def account_of(status: Status) -> Account:
    """The budget's account as the status holds it."""
    book = status.ledger
    lost = book.ranges or ((),) * len(status.shards)
    return Account(
        ledger=Ledger(
            total=book.total_samples,
            # Version 0.1.0 left a limit below what was carried over by less than one sample-shard.
            limit=max(book.limit_sample_shards, book.carried_sample_shards),
            lost=lost,
            running=book.running_sample_shards,
            carried=book.carried_sample_shards,
        ),
        reserved=tuple(shard.reserved for shard in status.shards),
        dense=status.dense.reserved,
        owes_from={s.index: first for s in status.shards if (first := owes_from(s)) is not None},
        dense_owes_from=_dense_owes_from(status.dense),
    )


def _dense_owes_from(dense: Dense) -> int | None:
    """The first sample that the dense state may miss and that no leader has reported."""
    # Releases that did not write owesFrom set something aside whenever the dense state could miss it.
    return dense.floor_samples if dense.owes_from is None and dense.reserved else dense.owes_from


def owes_from(shard: Shard) -> int | None:
    """The first sample that the shard may miss and has not reported. None: it has reported all it lost.

    One that was lost after its last report owes nothing until it has leave to restore.
    """
    if shard.owes_from is not None or shard.lost_at is None or shard.predecessor is not None:
        return shard.owes_from
    return shard.floor_samples


def is_overspent(status: Status) -> bool:
    """Whether more is lost than the budget allows. 0 is lost and 0 allowed while the total is not known."""
    return account_of(status).ledger.left < 0


def with_account(status: Status, account: Account) -> Status:
    """The status with this account, its portions for people included."""
    ledger, whole = account.ledger, account.ledger
    limit, spent = shown(ledger.limit, whole), shown(ledger.spent, whole)
    reserved = shown(account.set_aside, whole)
    shards = tuple(shard.evolve(reserved=ranges) for shard, ranges in zip(status.shards, account.reserved, strict=True))
    budget = Budget(
        limit=limit,
        spent=spent,
        reserved=min(reserved, 1.0),
        remaining=max(round(limit - spent - reserved, 12), 0.0),
        running_sum=shown(ledger.running, whole),
        rollbacks=status.budget.rollbacks if status.budget else 0,
    )
    book = status.ledger.evolve(
        total_samples=ledger.total,
        limit_sample_shards=ledger.limit,
        ranges=ledger.lost,
        running_sample_shards=ledger.running,
        carried_sample_shards=ledger.carried,
    )
    dense = status.dense.evolve(reserved=account.dense, owes_from=account.dense_owes_from)
    return status.evolve(shards=shards, dense=dense, ledger=book, budget=budget)


def counts(member: Member, failure: Failure) -> bool:
    """Whether a failure counts towards the restart limit.

    A process that was ended by SIGTERM without a deletion counts if it had not worked since the member was replaced:
    else a probe of the template that always fails would go on for ever.
    """
    return failure.counts_as_restart or (failure.unprompted and member.lost_at is not None)


def begins_incident(status: Status, member: Member, failure: Failure, now: float) -> bool:
    """Whether a failure counts: its kind does, and it does not belong to an incident that is counted already.

    A member belongs to an incident once: one that fails again, however soon, begins another.
    """
    if not counts(member, failure):
        return False
    alike = [f for f in status.failures if (f.role, f.kind) == (member.role, failure.kind)]
    if not alike:
        return True
    # Of a large incident the first record may be gone: only the last failures are kept.
    first = next((n for n, record in reversed([*enumerate(alike)]) if record.counted), 0)
    return alike[first].time < now - INCIDENT_S or member.index in {record.index for record in alike[first:]}


def new_incidents(state: ReconcileState) -> int:
    """How many incidents the members that are lost in this pass add to those counted."""
    lost = ((m, state.facts.get(m.name)) for m in state.status.members)
    return len(
        {
            (member.role, fact.failure.kind)
            for member, fact in lost
            if isinstance(fact, Lost) and begins_incident(state.status, member, fact.failure, state.now)
        }
    )
