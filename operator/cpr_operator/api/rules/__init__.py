"""Rules that a schema cannot express. Each is checked in CEL by the API server and in Python by the models.

A rule names the field and the remedy, and both sides give the same message. The models' validators
call `require`, and `crd` writes the CEL. Rules about changes are in `transitions`, and their Python side in `changes`.
"""

from __future__ import annotations

from cpr_operator.api.rules import budget, data, inputs, job, model, optimizers

#: All rules about one spec, in the order in which they stand in the CRD.
STATIC = (
    *job.RULES,
    *model.RULES,
    *optimizers.RULES,
    *data.RULES,
    *inputs.RULES,
    *budget.RULES,
)
