"""The transition rules in Python, on every change that tests/apiserver makes at an API server."""

import pytest

from cpr_operator.api.rules.rule import Invalid
from cpr_operator.api.status import Status
from cpr_operator.api.validate import parse_spec, refused
from support.change_cases import CHANGES, Change
from support.documents import Edits, edited


def refusals(change: Change, edits: Edits, status: Status) -> tuple[Invalid, ...]:
    before = edited(change.before)
    return refused(parse_spec(before["spec"]), parse_spec(edited(edits, before)["spec"]), status)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_change_is_admitted_or_refused_as_by_the_api_server(change: Change) -> None:
    status = Status.model_validate(change.status)
    assert refusals(change, change.good, status) == ()
    assert [str(one) for one in refusals(change, change.bad, status) if change.message in str(one)]
    assert bool(refusals(change, change.bad, Status())) is change.always
