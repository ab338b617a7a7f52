"""Changes of a job's spec in local mode, by the rules that the API server holds."""

from __future__ import annotations

from cpr_operator.api.rules.evaluation import broken
from cpr_operator.api.spec import CPRJobSpec
from cpr_operator.api.status import Status
from cpr_operator.api.transitions import TRANSITIONS
from cpr_operator.api.validate import Invalid


def refused(before: CPRJobSpec, after: CPRJobSpec, status: Status) -> tuple[Invalid, ...]:
    """Every field whose change is not allowed in the job's present status; empty if the change is admitted."""
    old, new = ({"spec": spec.to_dict(), "status": status.to_dict()} for spec in (before, after))
    return tuple(Invalid(field, rule.message, rule.remedy) for rule, field in broken(TRANSITIONS, new, old))
