"""Rules that a schema cannot express. Each is an expression of CEL, with a message that names field and remedy.

`crd` writes them for the API server, and `evaluation` checks the same expressions here. Rules about changes are in
`transitions`.
"""

from __future__ import annotations

from cpr_operator.api.rules import budget, data, held_out, inputs, job, model, optimizers, restore

#: All rules about one spec, in the order in which they stand in the CRD.
OF_SPEC = (
    *job.RULES,
    *held_out.RULES,
    *model.RULES,
    *optimizers.RULES,
    *data.RULES,
    *inputs.RULES,
    *budget.RULES,
    *restore.RULES,
)
#: All rules about one document.
STATIC = (job.NAME, *OF_SPEC)
