"""The plan: which recovery, and how often to save, so that the accuracy budget holds at the least cost.

`equations` are CPR's; `beliefs` and `costs` are what a job learns about failures and about itself; `law` is the one
function that chooses, of plain floats; `plan` puts it into words; `replan` says when to choose again. No clock, no I/O.
"""

from cpr_operator.policy.beliefs import Belief, after_failure, after_quiet, prior
from cpr_operator.policy.costs import Costs, running
from cpr_operator.policy.inputs import Inputs
from cpr_operator.policy.plan import Plan, plan
from cpr_operator.policy.replan import moved

__all__ = [
    "Belief",
    "Costs",
    "Inputs",
    "Plan",
    "after_failure",
    "after_quiet",
    "moved",
    "plan",
    "prior",
    "running",
]
