"""The rules that compare, in Python: on every change that the API server is shown in tests/apiserver."""

import pytest

from cpr_operator.api.status import Status
from cpr_operator.api.validate import Invalid, parse_spec, refused
from support.change_cases import CHANGES, Change
from support.documents import Edits, edited


def told(change: Change, edits: Edits, status: Status) -> tuple[Invalid, ...]:
    before = edited(change.before)
    return refused(parse_spec(before["spec"]), parse_spec(edited(edits, before)["spec"]), status)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_it_admits_and_refuses_what_the_api_server_does(change: Change) -> None:
    status = Status.model_validate(change.status)
    assert told(change, change.good, status) == ()
    assert [str(one) for one in told(change, change.bad, status) if change.message in str(one)]
    assert told(change, change.bad, Status()) == ()
