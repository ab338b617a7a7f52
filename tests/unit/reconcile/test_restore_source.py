"""The anchor of a job that names another job in restoreFrom."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cpr_contract.codec import pack, to_json
from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.api.restore_spec import LatestOf
from cpr_operator.api.status import SourceJob, Status
from cpr_operator.api.validate import parse_spec
from cpr_operator.cluster.views import JobView
from cpr_operator.desired.names import JobId
from cpr_operator.reconcile.restore_source import (
    AWAITED,
    REFUSED,
    NoSource,
    RestoreSource,
    restore_source,
    selects,
    source_anchor_in,
)
from cpr_operator.reconcile.types import Job
from simulation.control_plane.workload import spec

STORE = spec()["snapshots"]["store"]
BYNAME = {"restoreFrom": {"job": "yesterday"}}


def job(**fields: Any) -> Job:
    return Job(JobId("default", "today", "t"), 1, deleting=False, spec=parse_spec(spec() | fields), status=Status())


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
def test_source_is_the_result_or_else_the_newest_anchor(status: dict[str, Any], key: str) -> None:
    found = restore_source(job(**BYNAME), (yesterday(status=status),))
    assert isinstance(found, RestoreSource)
    assert found.job == SourceJob(job="yesterday", key=key)


@pytest.mark.parametrize("fields", [{}, {"restoreFrom": {"anchor": "key"}}])
def test_job_without_a_source_starts(fields: dict[str, Any]) -> None:
    assert restore_source(job(**fields), ()) == RestoreSource()


@pytest.mark.parametrize(
    ("other", "reason", "text"),
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
def test_source_without_an_anchor_gives_a_reason(other: JobView | None, reason: str, text: str) -> None:
    found = restore_source(job(**BYNAME), () if other is None else (other,))
    assert isinstance(found, NoSource)
    assert (found.reason, text in found.message) == (reason, True)


@pytest.mark.parametrize("found", ["y/result", None])
def test_source_anchor_is_in_the_jobs_description(found: str | None) -> None:
    description = to_json(to_job_spec(parse_spec(spec(restoreFrom={"job": "yesterday"})), "t", "today", found=found))
    assert (source_anchor_in(description), source_anchor_in(pack(description))) == (found, found)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"snapshots": null}', "zlib:"])
def test_source_anchor_of_an_unreadable_description_is_none(text: str) -> None:
    assert source_anchor_in(text) is None


# The job that succeeded last of those with a label.


LABELS = {"series": "clicks"}


def latest(none: str = "Wait") -> Job:
    return job(restoreFrom={"latestOf": {"matchLabels": LABELS, "none": none}})


def member(name: str, created: float = 0, hour: int = 0, phase: str = "Succeeded", **fields: Any) -> JobView:
    status = {"phase": phase, "completionTime": f"2026-01-01T{hour:02d}:00:00Z", "result": {"key": f"{name}/result"}}
    status = status if phase == "Succeeded" else {"phase": phase}
    view = yesterday(uid=name, status=status, **{"labels": LABELS, **fields})
    return replace(view, name=name, created=created)


OWN = replace(yesterday(uid="t", labels=LABELS), name="today", created=10)


@pytest.mark.parametrize(
    ("others", "key"),
    [
        ([member("a", hour=1), member("b", hour=3), member("c", hour=2)], "b/result"),
        ([member("a", created=5, hour=1), member("b", created=1, hour=3)], "b/result"),
        ([member("a", hour=1), member("b", phase="Failed")], "a/result"),
        ([member("a", hour=1), member("b", hour=3, deleting=True)], "a/result"),
        ([member("a", hour=1), member("b", hour=3, labels={"series": "views"})], "a/result"),
        ([member("a", hour=1), member("b", created=11, phase="Running")], "a/result"),
        ([member("a", hour=1), member("b", phase="Running", deleting=True)], "a/result"),
        ([member("a", hour=1), member("b", phase="Running", labels={})], "a/result"),
    ],
)
@pytest.mark.parametrize("none", ["Wait", "Initialise"])
def test_latest_of_takes_the_job_that_succeeded_last(others: list[JobView], key: str, none: str) -> None:
    found = restore_source(latest(none), (*others, OWN))
    assert isinstance(found, RestoreSource)
    assert found.job is not None
    assert found.job.key == key


@pytest.mark.parametrize("phase", ["Pending", "Running", "Suspended"])
@pytest.mark.parametrize("none", ["Wait", "Initialise"])
def test_latest_of_awaits_older_jobs(phase: str, none: str) -> None:
    found = restore_source(latest(none), (member("a", hour=1), member("b", created=9, phase=phase), OWN))
    assert found == NoSource(
        AWAITED,
        f"spec.restoreFrom.latestOf: b is older than this job, and is {phase}; this job starts when that "
        "one has ended; delete it to continue without it",
    )


def test_latest_of_orders_two_jobs_of_one_second() -> None:
    twin = replace(member("u", created=10), status={})
    assert isinstance(restore_source(latest("Initialise"), (twin, OWN)), RestoreSource)
    first = replace(twin, uid="s")
    assert isinstance(restore_source(latest("Initialise"), (first, OWN)), NoSource)


def test_latest_of_without_a_match_waits_or_initialises() -> None:
    others = (OWN, member("b", phase="Failed"))
    waits = restore_source(latest(), others)
    assert isinstance(waits, NoSource)
    assert (waits.reason, "spec.restoreFrom.latestOf.none: Initialise" in waits.message) == (AWAITED, True)
    starts = restore_source(latest("Initialise"), others)
    assert isinstance(starts, RestoreSource)
    assert (starts.job, "from first values" in starts.event_suffix) == (None, True)


def test_latest_of_refuses_another_store() -> None:
    moved = member("a", store=STORE | {"prefix": "p"})
    found = restore_source(latest("Initialise"), (moved, OWN))
    assert isinstance(found, NoSource)
    assert (found.reason, "another store, bucket or prefix" in found.message) == (REFUSED, True)


@pytest.mark.parametrize(
    ("expression", "labels", "chosen"),
    [
        ({"operator": "In", "values": ["a", "b"]}, {"k": "b"}, True),
        ({"operator": "In", "values": ["a", "b"]}, {"k": "c"}, False),
        ({"operator": "In", "values": ["a", "b"]}, {}, False),
        ({"operator": "NotIn", "values": ["a"]}, {"k": "a"}, False),
        ({"operator": "NotIn", "values": ["a"]}, {}, True),
        ({"operator": "Exists"}, {"k": ""}, True),
        ({"operator": "Exists"}, {"l": "a"}, False),
        ({"operator": "DoesNotExist"}, {"k": "a"}, False),
        ({"operator": "DoesNotExist"}, {"l": "a"}, True),
    ],
)
def test_match_expressions_follow_kubernetes(
    expression: dict[str, Any], labels: dict[str, str], *, chosen: bool
) -> None:
    fields = LatestOf.model_validate({"matchExpressions": [{"key": "k", **expression}]})
    assert selects(fields, labels) == chosen
    with_label = LatestOf.model_validate({"matchLabels": {"x": "y"}, "matchExpressions": [{"key": "k", **expression}]})
    assert not selects(with_label, labels)
    assert selects(with_label, labels | {"x": "y"}) == chosen
