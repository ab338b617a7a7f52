"""The rules for changes of a job that has started. They compare a spec with the previous one. See also `rules`."""

from __future__ import annotations

from cpr_operator.api.rules.job_rules import PORTION
from cpr_operator.api.rules.rule import Rule

_STARTED = "has(oldSelf.status) && has(oldSelf.status.startTime)"
#: Tolerance for sums of portions, because 0.1 + 0.2 is more than 0.3 in floating point.
SUM_ERROR = 1e-9
BUDGET_ABOVE_SPENT = Rule(
    "",
    "spec.accuracyBudget",
    "must not be lowered below the spent and reserved portions",
    "allow at least the sum of status.budget.spent and status.budget.reserved",
    "!has(self.status) || !has(self.status.budget) || self.spec.accuracyBudget == oldSelf.spec.accuracyBudget"
    f" || {PORTION.format('self.spec.accuracyBudget')} + {SUM_ERROR}"
    " >= self.status.budget.spent + self.status.budget.reserved",
)


def _frozen(field: str) -> Rule:
    """Return the rule for a required part of spec that must not change once the job has started."""
    return Rule(
        "",
        f"spec.{field}",
        "cannot be changed once the job has started",
        "delete the job and apply it again (spec.snapshots.restoreFrom continues from its result)",
        f"!({_STARTED}) || self.spec.{field} == oldSelf.spec.{field}",
    )


def _while_suspended(field: str) -> Rule:
    """Return the rule for a part of spec that may change only while no pod of the job exists."""
    return Rule(
        "",
        f"spec.{field}",
        "can only be changed while the job is suspended",
        "set spec.suspend to true, wait for the phase Suspended, then change it",
        f"!({_STARTED}) || (self.spec.suspend && oldSelf.status.phase == 'Suspended')"
        f" || self.spec.{field} == oldSelf.spec.{field}",
    )


RESTORE_FROM = Rule(
    "",
    "spec.restoreFrom",
    "cannot be changed once the job has started",
    "delete the job and apply it again",
    f"!({_STARTED}) || (has(self.spec.restoreFrom) ? has(oldSelf.spec.restoreFrom)"
    " && self.spec.restoreFrom == oldSelf.spec.restoreFrom : !has(oldSelf.spec.restoreFrom))",
)
REDUNDANCY = Rule(
    "",
    "spec.recovery.redundancy",
    "cannot be changed once the job has started",
    "delete the job and apply it again (spec.snapshots.restoreFrom continues from its result)",
    f"!({_STARTED}) || (has(self.spec.recovery.redundancy) ? has(oldSelf.spec.recovery.redundancy)"
    " && self.spec.recovery.redundancy == oldSelf.spec.recovery.redundancy"
    " : !has(oldSelf.spec.recovery.redundancy))",
)
#: An absent field is Auto.
_WORKERS = "(has({0}.workers) ? {0}.workers : dyn('Auto'))"
WORKERS = Rule(
    "",
    "spec.trainers.workers",
    "cannot be changed once the job has started",
    "delete the job and apply it again (spec.snapshots.restoreFrom continues from its result)",
    f"!({_STARTED}) || {_WORKERS.format('self.spec.trainers')} == {_WORKERS.format('oldSelf.spec.trainers')}",
)
SHARDS_LOCKSTEP = Rule(
    "",
    "spec.shards.replicas",
    "cannot be changed in a shadow mode of spec.trainers.denseSync once the job has started",
    "delete the job and apply it again (spec.snapshots.restoreFrom continues from its result)",
    f"!({_STARTED}) || self.spec.trainers.denseSync == 'AllReduce'"
    " || self.spec.shards.replicas == oldSelf.spec.shards.replicas",
)
SHARDS = _while_suspended("shards.replicas")
WHILE_SUSPENDED = (
    SHARDS,
    _while_suspended("trainers.template"),
    _while_suspended("shards.template"),
    _while_suspended("failurePolicy.startupDeadlineSeconds"),
)
FROZEN = (
    *map(
        _frozen,
        (
            "image",
            "recovery.mode",
            "recovery.onShardLoss",
            "recovery.replay",
            "model",
            "data",
            "evaluation",
            "trainers.denseSync",
            "trainers.sparseUpdates",
            "trainers.precision",
            "trainers.prefetch",
            "trainers.device",
            "snapshots",
            "failurePolicy.expectedJobMtbfSeconds",
            "failurePolicy.restartLimit",
            "failurePolicy.silenceSeconds",
        ),
    ),
    REDUNDANCY,
    RESTORE_FROM,
    WORKERS,
)
#: Always mutable: suspend, ttlSecondsAfterFinished, accuracyBudget, trainers.replicas, recovery.deadlineSeconds and
#: recovery.onDeadline. The rules sit at the root, because a rule on an optional field is skipped when the field comes
#: or goes.
TRANSITIONS = (*FROZEN, *WHILE_SUSPENDED, SHARDS_LOCKSTEP, BUDGET_ABOVE_SPENT)
