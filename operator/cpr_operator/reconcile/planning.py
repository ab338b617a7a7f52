"""When the plan is made anew: at the start, after a failure, and when what it rests on has moved."""

from __future__ import annotations

from statistics import fmean

from cpr_operator import policy
from cpr_operator.api.spec import CPRJobSpec
from cpr_operator.api.status import Plan, Status
from cpr_operator.cluster.protocol import Event
from cpr_operator.ledger import portion
from cpr_operator.policy.inputs import Bits
from cpr_operator.reconcile.edit import account_of
from cpr_operator.reconcile.learning import belief_of
from cpr_operator.reconcile.world import EventReason

#: An interval that changed by less than this part is the same.
_SAME = 0.05


def planned(spec: CPRJobSpec, status: Status, *, anew: bool) -> Status:
    """The status with the plan that fits it, made anew or because its figures moved.

    The old one stays while its figures hold. If they moved and the new one would hardly do anything else, its interval
    stays, so that rosters stay as they are; but conditions and people are told by the new figures.
    """
    choice, old = policy.plan(plan_inputs(spec, status)), status.plan
    # A rollback goes to an anchor: it has no use for rows that are fresher.
    priority = spec.snapshots.strategy != "Full" and choice.mode == "Partial"
    new = Plan(
        mode=choice.mode,
        interval_seconds=choice.interval_s,
        priority_interval_seconds=spec.snapshots.fraction * choice.interval_s if priority else 0.0,
        stored_bits=choice.stored_bits,
        expected_lost_samples=choice.expected_lost_samples,
        expected_overhead=choice.expected_overhead,
        inputs=choice.figures(),
        reason=choice.reason,
    )
    if not anew and old is not None:
        if not policy.moved(old.inputs, new.inputs):
            return status
        new = _refreshed(old, new)
    return status.evolve(plan=new)


def plan_inputs(spec: CPRJobSpec, status: Status) -> policy.Inputs:
    """What the policy knows: the user's figures, the account, and what was learnt."""
    learnt, account = status.policy, account_of(status)
    interval = spec.snapshots.interval
    return policy.Inputs(
        mode=spec.recovery.mode,
        limit=spec.accuracy_budget.portion,
        shards=len(status.shards),
        belief=belief_of(spec, status),
        spent=portion(account.ledger.spent, account.ledger),
        reserved=portion(account.set_aside, account.ledger),
        fixed_interval_s=float(interval.seconds) if interval.seconds else None,
        total_samples=status.ledger.total_samples,
        saved_samples=status.anchors[-1].samples if status.anchors else 0,
        samples_per_s=learnt.samples_per_second,
        costs=policy.Costs.measured(
            save_stall_s=learnt.save_stall_seconds,
            commit_s=learnt.commit_seconds,
            load_s=learnt.load_seconds,
            reschedule_s=learnt.reschedule_seconds,
        ),
        basis=spec.accuracy_budget.basis,
        fixed_bits=_fixed_bits(spec),
        restored=_restored(status),
    )


def _fixed_bits(spec: CPRJobSpec) -> Bits | None:
    quantisation = spec.snapshots.quantisation
    return 32 if quantisation.mode == "Exact" else quantisation.bits


def _restored(status: Status) -> float:
    """How often a row was restored so far, at most: a flush is exact."""
    incarnations = [shard.incarnation - 1 for shard in status.shards]
    return max(status.counters.generation - 1, 0) + (fmean(incarnations) if incarnations else 0.0)


def plan_news(before: Status, after: Status) -> tuple[Event, ...]:
    """The event of a plan that does something else than the one before, in the plan's own words."""
    old, new = before.plan, after.plan
    if new is None or (old is not None and not _differs(old, new)):
        return ()
    key = f"planned-{before.counters.roster}-{new.mode}-{new.interval_seconds:.6g}"
    return (Event("Normal", EventReason.PLANNED, new.reason, key),)


def _refreshed(old: Plan, new: Plan) -> Plan:
    """The new plan, or if it hardly differs the old one with the new figures; a sentence belongs to its interval."""
    if _differs(old, new) or new.interval_seconds == old.interval_seconds:
        return new
    return old.evolve(
        inputs=new.inputs,
        expected_lost_samples=new.expected_lost_samples,
        expected_overhead=new.expected_overhead,
    )


def _differs(old: Plan, new: Plan) -> bool:
    if (old.mode, old.stored_bits) != (new.mode, new.stored_bits):
        return True
    return abs(new.interval_seconds - old.interval_seconds) > _SAME * old.interval_seconds
