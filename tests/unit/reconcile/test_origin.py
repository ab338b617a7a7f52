"""Which anchor a job starts from that names another job."""

from __future__ import annotations

from typing import Any

import pytest

from cpr_contract.codec import pack, to_json
from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.api.status import Status
from cpr_operator.api.validate import parse_spec
from cpr_operator.cluster.views import JobView
from cpr_operator.desired.names import JobId
from cpr_operator.reconcile.origin import AWAITED, REFUSED, Chosen, NotYet, origin_in, origin_of
from cpr_operator.reconcile.pass_ import Job
from support.driver import spec

STORE = spec()["snapshots"]["store"]
BYNAME = {"restoreFrom": {"job": "yesterday"}}


def job(**wanted: Any) -> Job:
    return Job(JobId("default", "today", "t"), 1, deleting=False, spec=parse_spec(spec() | wanted), status=Status())


def yesterday(store: dict[str, str] | None = None, uid: str = "y", **fields: Any) -> JobView:
    status = fields.pop("status", {})
    snapshots = {"snapshots": {"store": STORE if store is None else store}}
    return JobView(
        "default", "yesterday", uid, 1, "1", 0.0, **{"deleting": False, **fields}, spec=snapshots, status=status
    )


RESULT, FIRST, SECOND = ({"key": f"y/{name}"} for name in ("result", "first", "second"))


@pytest.mark.parametrize(
    ("status", "key"),
    [
        ({"phase": "Succeeded", "result": RESULT, "anchors": [FIRST, SECOND]}, "y/result"),
        ({"phase": "Running", "anchors": [FIRST, SECOND]}, "y/second"),
        ({"phase": "Failed", "anchors": [FIRST]}, "y/first"),
    ],
)
def test_the_result_is_taken_and_else_the_newest_anchor(status: dict[str, Any], key: str) -> None:
    assert origin_of(job(**BYNAME), yesterday(status=status)) == Chosen(key)


@pytest.mark.parametrize("wanted", [{}, {"restoreFrom": {"anchor": "key"}}])
def test_a_job_that_names_no_other_job_needs_none(wanted: dict[str, Any]) -> None:
    assert origin_of(job(**wanted), None) == Chosen(None)


@pytest.mark.parametrize(
    ("other", "reason", "told"),
    [
        (None, AWAITED, "spec.restoreFrom.job: yesterday does not exist"),
        (yesterday(deleting=True, status={"result": RESULT}), AWAITED, "is being deleted"),
        (yesterday(status={}), AWAITED, "has no anchor yet"),
        (yesterday(status={"phase": "Running", "anchors": []}), AWAITED, "has no anchor yet"),
        (yesterday(status={"phase": "Failed"}), REFUSED, "has failed and has no anchor; name another job"),
        (yesterday(uid="t", status={"anchors": [FIRST]}), REFUSED, "is this job"),
        (yesterday(STORE | {"prefix": "p"}, status={"result": RESULT}), REFUSED, "another store, bucket or prefix"),
        (yesterday(STORE | {"bucket": "b"}, status={"result": RESULT}), REFUSED, "another store, bucket or prefix"),
    ],
)
def test_else_the_job_is_told_why_it_waits(other: JobView | None, reason: str, told: str) -> None:
    found = origin_of(job(**BYNAME), other)
    assert isinstance(found, NotYet)
    assert (found.reason, told in found.message) == (reason, True)


@pytest.mark.parametrize("found", ["y/result", None])
def test_what_was_chosen_is_in_the_description_of_the_job(found: str | None) -> None:
    told = to_json(to_job_spec(parse_spec(spec(restoreFrom={"job": "yesterday"})), "t", "today", found=found))
    assert (origin_in(told), origin_in(pack(told))) == (found, found)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"snapshots": null}', "zlib:"])
def test_a_description_that_cannot_be_read_names_none(text: str) -> None:
    assert origin_in(text) is None
