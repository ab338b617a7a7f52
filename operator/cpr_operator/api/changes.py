"""Changes of a job's spec in local mode, by the rules that the API server holds in CEL."""

from __future__ import annotations

from typing import Any

from cpr_operator.api import transitions
from cpr_operator.api.rules.rule import Rule
from cpr_operator.api.spec import CPRJobSpec
from cpr_operator.api.status import Status
from cpr_operator.api.validate import Invalid


def refused(before: CPRJobSpec, after: CPRJobSpec, status: Status) -> tuple[Invalid, ...]:
    """Every field whose change is not allowed in the job's present status; empty if the change is admitted."""
    broken: list[Rule] = []
    if status.start_time is not None:
        suspended = after.suspend and status.phase == "Suspended"
        held = transitions.FROZEN if suspended else (*transitions.FROZEN, *transitions.WHILE_SUSPENDED)
        if after.trainers.dense_sync != "AllReduce":
            held += (transitions.SHARDS_LOCKSTEP,)
        old, new = before.to_dict(), after.to_dict()
        broken += [rule for rule in held if _at(old, rule.field) != _at(new, rule.field)]
    budget, spent = after.accuracy_budget, status.budget
    least = spent.spent + spent.reserved - transitions.SUM_ERROR if spent is not None else 0.0
    if budget != before.accuracy_budget and budget.portion < least:
        broken.append(transitions.BUDGET_ABOVE_SPENT)
    return tuple(Invalid(rule.field, rule.message, rule.remedy) for rule in broken)


def _at(spec: dict[str, Any], field: str) -> Any:
    """The value at a path such as spec.shards.replicas."""
    value: Any = spec
    for key in field.split(".")[1:]:
        value = value[key]
    return value
