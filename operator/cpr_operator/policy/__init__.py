"""Choose the recovery mode and the save interval that keep the accuracy budget at the lowest cost. No clock, no I/O.

`equations` has CPR's equations, and `inputs` the estimates and measurements of a job. `law` makes the choice, in plain
floats. `plan` explains it, and decides when to choose again. `alternatives` has the plans for other inputs.
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
