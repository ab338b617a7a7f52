from __future__ import annotations

import pytest

from cpr_operator.api.rules.job import GUESSED_SENSITIVITY
from cpr_operator.api.snapshots import AccuracyBudget
from cpr_operator.api.status import Status
from cpr_operator.api.validate import parse_spec
from cpr_operator.reconcile.plan import plan_inputs
from support.documents import AUC_DROP, edited


def budget(edits: dict[str, object]) -> AccuracyBudget:
    return parse_spec(edited(edits)["spec"]).accuracy_budget


def test_a_portion_is_what_the_user_wrote() -> None:
    assert (budget({}).type, budget({}).portion, budget({}).basis) == ("PortionOfLostSamples", 0.1, "")
    assert budget({"spec.accuracyBudget.portionOfLostSamples": 0}).portion == 0


def test_an_auc_drop_is_a_portion_by_its_sensitivity() -> None:
    stated = budget(dict(AUC_DROP))
    assert stated.portion == pytest.approx(0.25)
    assert stated.basis == (
        "An AUC drop of 0.0005 allows a portion of lost samples of 0.25, by the stated sensitivity of 0.002."
    )
    assert budget(AUC_DROP | {"spec.accuracyBudget.aucDrop.limit": 0}).portion == 0


def test_without_a_sensitivity_the_plan_says_that_it_is_a_guess() -> None:
    spec = parse_spec(edited(AUC_DROP | {"spec.accuracyBudget.aucDrop": {"limit": 0.0005}})["spec"])
    assert spec.accuracy_budget.portion == pytest.approx(0.0005 / GUESSED_SENSITIVITY)
    inputs = plan_inputs(spec, Status())
    assert inputs.limit == spec.accuracy_budget.portion
    assert f"a sensitivity of {GUESSED_SENSITIVITY:g}, which is only a guess" in inputs.basis
    assert "cprjob calibrate" in inputs.basis
