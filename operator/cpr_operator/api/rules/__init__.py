"""Rules that a schema cannot express. Each is an expression in CEL, and a message with field and remedy.

`crd` writes them for the API server, and `rule` evaluates the same expressions. Rules about changes are in
`transitions`.
"""

from __future__ import annotations

from cpr_operator.api.rules.data_rules import OF_DATA, OF_INPUTS
from cpr_operator.api.rules.follow_rules import OF_FOLLOW
from cpr_operator.api.rules.job_rules import NAME, OF_BUDGET, OF_DYNAMIC, OF_EVALUATION, OF_JOB, OF_RESTORE
from cpr_operator.api.rules.model_rules import OF_MODEL, OF_OPTIMIZERS

#: All rules about one spec, in the order in which they stand in the CRD.
OF_SPEC = (
    *OF_JOB,
    *OF_DYNAMIC,
    *OF_EVALUATION,
    *OF_MODEL,
    *OF_OPTIMIZERS,
    *OF_DATA,
    *OF_INPUTS,
    *OF_FOLLOW,
    *OF_BUDGET,
    *OF_RESTORE,
)
#: All rules about one document.
STATIC = (NAME, *OF_SPEC)
