from __future__ import annotations

import pytest

from cpr_operator.api.rules.job_rules import GUESSED_SENSITIVITY
from cpr_operator.api.snapshots_spec import AccuracyBudget
from cpr_operator.api.status import Status
from cpr_operator.api.validate import parse_spec
from cpr_operator.reconcile.save_plan import plan_inputs
from support.documents import AUC_DROP, edited


def budget(edits: dict[str, object]) -> AccuracyBudget:
    return parse_spec(edited(edits)["spec"]).accuracy_budget


STATED = "An AUC drop of 0.0005 allows a portion of lost samples of 0.25, by the stated sensitivity of 0.002."


@pytest.mark.parametrize(
    ("edits", "portion", "basis"),
    [
        ({}, 0.1, ""),
        ({"spec.accuracyBudget.portionOfLostSamples": 0}, 0, ""),
        (AUC_DROP, 0.25, STATED),
        (AUC_DROP | {"spec.accuracyBudget.aucDrop.limit": 0}, 0, STATED.replace("0.0005", "0").replace("0.25", "0")),
    ],
)
def test_budget_is_a_portion_of_lost_samples(edits: dict[str, object], portion: float, basis: str) -> None:
    found = budget(edits)
    assert (found.portion, found.basis) == (pytest.approx(portion), basis)


def test_plan_without_a_sensitivity_is_marked_as_a_guess() -> None:
    spec = parse_spec(edited(AUC_DROP | {"spec.accuracyBudget.aucDrop": {"limit": 0.0005}})["spec"])
    assert spec.accuracy_budget.portion == pytest.approx(0.0005 / GUESSED_SENSITIVITY)
    inputs = plan_inputs(spec, Status())
    assert inputs.limit == spec.accuracy_budget.portion
    assert f"a sensitivity of {GUESSED_SENSITIVITY:g}, which is only a guess" in inputs.basis
    assert "cprjob calibrate" in inputs.basis
