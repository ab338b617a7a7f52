"""Chooses the recovery mode and the save interval that keep the accuracy budget at the lowest cost.

`equations` has CPR's equations. `beliefs` and `costs` hold what a job has learnt about its failures and itself.
`law` makes the choice, in plain floats. `plan` explains it, and `replan` says when to choose again. No clock, no I/O.
"""

from cpr_operator.policy.inputs import Costs, FailureEstimate, Inputs, after_failure, after_quiet, prior, running
from cpr_operator.policy.plan import Plan, moved, plan

__all__ = [
    "Costs",
    "FailureEstimate",
    "Inputs",
    "Plan",
    "after_failure",
    "after_quiet",
    "moved",
    "plan",
    "prior",
    "running",
]
