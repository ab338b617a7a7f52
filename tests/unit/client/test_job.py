from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from cpr_operator.api.validate import InvalidSpecError
from cpr_operator.client.job import Job, events_of, to_create

QUICKSTART = Path(__file__).parents[3] / "examples" / "quickstart.yaml"


def quickstart(**metadata: Any) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(QUICKSTART.read_text("utf-8"))
    document["metadata"] |= metadata
    return document


@pytest.mark.parametrize(
    ("phase", "suspend", "over"),
    [
        (None, False, False),
        (None, True, True),
        ("Pending", True, True),
        ("Running", False, False),
        ("Suspending", True, False),
        ("Suspended", True, True),
        ("Suspended", False, False),  # by the operator, which resumes it
        ("Succeeded", False, True),
        ("Failed", True, True),
        ("Sleeping", False, False),  # of a newer operator
    ],
)
def test_is_over_only_without_further_changes(phase: str | None, suspend: bool, over: bool) -> None:  # noqa: FBT001
    status = {} if phase is None else {"status": {"phase": phase}}
    assert Job({"spec": {"suspend": suspend}} | status).over is over


def test_to_create_drops_fields_of_the_cluster() -> None:
    old = quickstart(labels={"team": "ads"}, uid="1", resourceVersion="2", namespace="team") | {"status": {"phase": 1}}
    created = to_create(old)
    assert created["metadata"] == {"name": "quickstart", "namespace": "team", "labels": {"team": "ads"}}
    assert set(created) == {"apiVersion", "kind", "metadata", "spec"}


def test_to_create_converts_dates_of_yaml_to_text() -> None:
    assert to_create(quickstart(annotations={"since": date(2026, 1, 1)}))["metadata"]["annotations"] == {
        "since": "2026-01-01"
    }


def test_to_create_names_every_wrong_field() -> None:
    wrong = quickstart()
    wrong["spec"]["data"]["samples"] = 0
    wrong["spec"]["trainrs"] = {}
    with pytest.raises(InvalidSpecError, match="did you mean trainers") as raised:
        to_create(wrong)
    assert [each.field for each in raised.value.invalid] == ["spec.data.samples", "spec.trainrs"]


def test_spec_and_status_are_those_of_the_resource() -> None:
    job = Job(quickstart(uid="1", namespace="team", creationTimestamp="2026-01-01T00:00:00Z"))
    assert (job.name, job.namespace, job.uid, job.created) == ("quickstart", "team", "1", 1767225600.0)
    assert (job.spec.shards.replicas, job.status.phase, job.phase) == (2, "Pending", "")


def event(uid: str, about: str, second: int, version: str, **fields: Any) -> dict[str, Any]:
    stamp = f"2026-01-01T00:00:{second:02}Z"
    meta = {"uid": uid, "resourceVersion": version, "creationTimestamp": "2026-01-01T00:00:30Z"}
    return {"metadata": meta, "involvedObject": {"uid": about}, "lastTimestamp": stamp, "reason": uid} | fields


def test_events_of_a_uid_are_in_order() -> None:
    items = [
        event("c", "1", 2, "30", type="Warning", message="why"),
        event("b", "1", 1, "20"),
        event("a", "1", 1, "9"),
        event("other", "2", 0, "1"),
        event("d", "1", 0, "2", lastTimestamp=None),
    ]
    found = events_of(items, "1")
    assert [each.reason for each in found] == ["a", "b", "c", "d"]
    assert [each.line for each in found[2:]] == ["! c: why", "· d: "]
