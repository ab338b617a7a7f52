"""The rules for changes of a job that has started. They compare a spec with the previous one. See also `rules`."""

from __future__ import annotations

from cpr_operator.api.rules.job_rules import PORTION
from cpr_operator.api.rules.rule import Rule

_STARTED = "has(oldSelf.status) && has(oldSelf.status.startTime)"
#: Tolerance for sums of portions, because 0.1 + 0.2 is more than 0.3 in floating point.
SUM_ERROR = 1e-9
BUDGET_ABOVE_SPENT = Rule(
    "/spec.accuracyBudget",
    "must not be lowered below the spent and reserved portions",
    "allow at least the sum of status.budget.spent and status.budget.reserved",
    "!has(self.status) || !has(self.status.budget) || self.spec.accuracyBudget == oldSelf.spec.accuracyBudget"
    f" || {PORTION.format('self.spec.accuracyBudget')} + {SUM_ERROR}"
    " >= self.status.budget.spent + self.status.budget.reserved",
)


#: An absent field is Auto.
_WORKERS = "(has({0}.workers) ? {0}.workers : dyn('Auto'))"


def _frozen(field: str, unchanged: str = "", when: str = "", remedy: str = "") -> Rule:
    """Return the rule for a part of spec that must not change once the job has started.

    unchanged: the condition in CEL, unless the two are simply compared. when: where the rule holds, for its message.
    """
    return Rule(
        f"/spec.{field}",
        f"cannot be changed{when} once the job has started",
        remedy or "delete the job and apply it again (spec.snapshots.restoreFrom continues from its result)",
        f"!({_STARTED}) || {unchanged or f'self.spec.{field} == oldSelf.spec.{field}'}",
    )


def _equal_or_absent(field: str) -> str:
    """Return the condition that an optional part of spec has not changed."""
    now, before = f"self.spec.{field}", f"oldSelf.spec.{field}"
    return f"(has({now}) ? has({before}) && {now} == {before} : !has({before}))"


def _while_suspended(field: str) -> Rule:
    """Return the rule for a part of spec that may change only while no pod of the job exists."""
    return Rule(
        f"/spec.{field}",
        "can only be changed while the job is suspended",
        "set spec.suspend to true, wait for the phase Suspended, then change it",
        f"!({_STARTED}) || (self.spec.suspend && oldSelf.status.phase == 'Suspended')"
        f" || self.spec.{field} == oldSelf.spec.{field}",
    )


SHARDS = _while_suspended("shards.replicas")
OF_MULTIKUEUE = (
    Rule(
        "/spec.managedBy",
        "cannot be changed",
        "delete the job and apply it again",
        _equal_or_absent("managedBy"),
    ),
    Rule(
        "/spec",
        "cannot be changed after MultiKueue has created the job in a worker cluster, because it copies no changes",
        "delete the job and apply it again",
        f"!has(self.spec.managedBy) || !({_STARTED}) || self.spec == oldSelf.spec",
    ),
)
#: Always mutable: suspend, ttlSecondsAfterFinished, accuracyBudget, trainers.replicas, recovery.deadlineSeconds and
#: recovery.onDeadline. The rules sit at the root, because a rule on an optional field is skipped when the field comes
#: or goes.
TRANSITIONS = (
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
    _frozen("recovery.redundancy", _equal_or_absent("recovery.redundancy")),
    _frozen("restoreFrom", _equal_or_absent("restoreFrom"), remedy="delete the job and apply it again"),
    _frozen("publish", _equal_or_absent("publish"), remedy="delete the job and apply it again"),
    _frozen(
        "trainers.workers",
        f"{_WORKERS.format('self.spec.trainers')} == {_WORKERS.format('oldSelf.spec.trainers')}",
    ),
    SHARDS,
    _while_suspended("trainers.template"),
    _while_suspended("shards.template"),
    _while_suspended("failurePolicy.startupDeadlineSeconds"),
    _frozen(
        "shards.replicas",
        "self.spec.trainers.denseSync == 'AllReduce' || self.spec.shards.replicas == oldSelf.spec.shards.replicas",
        when=" in a shadow mode of spec.trainers.denseSync",
    ),
    BUDGET_ABOVE_SPENT,
    *OF_MULTIKUEUE,
)
