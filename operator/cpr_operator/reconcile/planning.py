"""When the plan is made anew: at the start, after a failure, and when what it rests on has moved."""

from __future__ import annotations

from cpr_operator import policy
from cpr_operator.api.spec import CPRJobSpec
from cpr_operator.api.status import Plan, Status
from cpr_operator.ledger import portion
from cpr_operator.reconcile.edit import account_of
from cpr_operator.reconcile.world import change

#: A figure that moved by more than this part makes a new plan.
MOVED = 0.25
#: Figures below this are noise.
NOISE = 1e-3


def planned(spec: CPRJobSpec, status: Status, *, anew: bool) -> Status:
    """The status with the plan that fits it; the old one stays while its figures hold, so rosters stay as they are."""
    inputs = plan_inputs(spec, status)
    plan = policy.plan(inputs)
    if not anew and status.plan is not None and not _moved(status.plan.inputs, plan.figures()):
        return status
    return change(  # type: ignore[no-any-return]
        status,
        plan=Plan(
            mode=plan.mode,
            interval_seconds=plan.interval_s,
            expected_lost_samples=plan.expected_lost_samples,
            expected_overhead=plan.expected_overhead,
            inputs=plan.figures(),
            reason=plan.reason,
        ),
    )


def plan_inputs(spec: CPRJobSpec, status: Status) -> policy.Inputs:
    """What the policy knows: the user's figures, the account, and what was measured."""
    measured, guess, account = status.policy, policy.Costs(), account_of(status)
    interval = spec.snapshots.interval
    return policy.Inputs(
        mode=spec.recovery.mode,
        limit=spec.accuracy_budget.portion_of_lost_samples,
        shards=len(status.shards),
        mtbf_s=float(spec.failure_policy.expected_job_mtbf_seconds),
        spent=portion(account.ledger.spent, account.ledger),
        reserved=portion(account.set_aside, account.ledger),
        fixed_interval_s=float(interval.seconds) if interval.seconds else None,
        total_samples=status.ledger.total_samples,
        samples_per_s=measured.samples_per_second,
        costs=policy.Costs(
            save_stall_s=_known(measured.save_stall_seconds, guess.save_stall_s),
            commit_s=_known(measured.commit_seconds, guess.commit_s),
            load_s=_known(measured.load_seconds, guess.load_s),
            reschedule_s=_known(measured.reschedule_seconds, guess.reschedule_s),
        ),
    )


def _known(measured: float | None, guess: float) -> float:
    return guess if measured is None else measured


def _moved(old: dict[str, float], new: dict[str, float]) -> bool:
    if old.keys() != new.keys():
        return True
    return any(abs(new[name] - old[name]) > max(MOVED * abs(old[name]), NOISE) for name in new)
