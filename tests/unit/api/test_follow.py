"""`spec.data.follow` as the pods get it, and that the resource refuses what the trainers refuse."""

import pytest

from cpr_contract.spec import FollowSpec
from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.api.validate import parse_spec
from cpr_trainer.runtime import BadSpecError
from cpr_trainer.trainer.followed_data import check_follow
from support.documents import Case, edited
from support.follow_cases import FOLLOW, FOLLOW_RULES


def test_pods_get_the_followed_data_with_one_epoch() -> None:
    follow = {"everySeconds": 5, "until": "2026-12-31T00:00:00.5+01:00", "idle": "Finish"}
    data = to_job_spec(parse_spec(edited(FOLLOW | {"spec.data.follow": follow})["spec"]), "uid", "name").data
    assert (data.epochs, data.samples) == (1, None)
    assert data.follow == FollowSpec(5.0, 1798671600.5, "Finish")
    data = to_job_spec(parse_spec(edited(FOLLOW)["spec"]), "uid", "name").data
    assert data.follow == FollowSpec(30.0, None, "Wait")


@pytest.mark.parametrize("case", FOLLOW_RULES, ids=lambda case: f"{case.field}-{case.message}")
def test_trainers_refuse_what_the_rules_refuse(case: Case) -> None:
    good, bad = (
        to_job_spec(parse_spec(edited(edits)["spec"], checked=True), "uid", "name") for edits in (case.good, case.bad)
    )
    check_follow(good)
    with pytest.raises(BadSpecError):
        check_follow(bad)
