from __future__ import annotations

from typing import Any

import pytest

from cpr_operator.api.status import Status
from cpr_operator.cluster.protocol import Event, PodPatch, Priority
from cpr_operator.controller.priority import request_priority, status_pause_s, status_priority, wake_after_s
from cpr_operator.reconcile import Outcome
from cpr_operator.reconcile.types import PodDelete

DELETE = PodDelete("pod", "uid", "replaced")
ROSTER = PodPatch("pod", "uid", {})
EVENT = Event("Normal", "Planned", "another interval", "key")


def status(phase: str, *, begun: bool = True, **fields: Any) -> Status:
    return Status.model_validate({"phase": phase, "startTime": "2026-01-01T00:00:00Z" if begun else None, **fields})


@pytest.mark.parametrize(
    ("before", "after", "effects", "priority"),
    [
        ("Running", "Running", {}, Priority.REGULAR),
        ("Running", "Running", {"needs_prerequisites": True}, Priority.REGULAR),
        ("Running", "Running", {"stalled": True}, Priority.RECOVERY),
        ("Running", "Running", {"rosters": (ROSTER,)}, Priority.RECOVERY),
        ("Running", "Running", {"events": (EVENT,)}, Priority.RECOVERY),
        ("Running", "Recovering", {"creates": ({},)}, Priority.RECOVERY),
        ("Recovering", "Recovering", {}, Priority.RECOVERY),
        ("Recovering", "Running", {}, Priority.RECOVERY),
        ("Finishing", "Succeeded", {"deletes": (DELETE,)}, Priority.RECOVERY),
        ("Succeeded", "Succeeded", {"deletes": (DELETE,)}, Priority.START),
        ("Starting", "Starting", {"rosters": (ROSTER,)}, Priority.START),
        ("Suspended", "Starting", {"creates": ({},)}, Priority.START),
    ],
)
def test_interrupted_training_has_the_priority_of_recoveries(
    before: str, after: str, effects: dict[str, Any], priority: Priority
) -> None:
    assert request_priority(status(before), Outcome(status(after), **effects)) is priority
    assert status_priority(status(before), priority) is priority


def test_an_edit_is_answered_at_once() -> None:
    after = status("Running", observedGeneration=2)
    assert request_priority(status("Running", observedGeneration=1), Outcome(after)) is Priority.START
    assert status_pause_s(status("Running", observedGeneration=1), after, Priority.START, 15.0, 1000) == 0.0


def test_jobs_that_have_begun_go_before_new_ones() -> None:
    new = status("Pending", begun=False)
    assert request_priority(new, Outcome(new)) is Priority.BEGIN
    priority = request_priority(new, Outcome(status("Starting"), creates=({},)))
    assert priority is Priority.START
    assert status_priority(new, priority) is Priority.BEGIN


@pytest.mark.parametrize(
    ("change", "priority", "jobs", "seconds"),
    [
        ({"progress": {"samples": 5}}, Priority.REGULAR, 1, 15.0),
        ({"progress": {"samples": 5}}, Priority.REGULAR, 1000, 62.5),
        ({"progress": {"samples": 5}}, Priority.RECOVERY, 1000, 62.5),
        ({"restarts": 1}, Priority.REGULAR, 1000, 62.5),
        ({"restarts": 1}, Priority.RECOVERY, 1000, 0.0),
    ],
)
def test_progress_is_written_less_often_with_more_jobs(
    change: dict[str, Any], priority: Priority, jobs: int, seconds: float
) -> None:
    assert status_pause_s(status("Running"), status("Running", **change), priority, 15.0, jobs) == seconds


@pytest.mark.parametrize(
    ("priority", "jobs", "seconds"),
    [
        (Priority.REGULAR, 1, 5.0),
        (Priority.REGULAR, 1000, 40.0),
        (Priority.REGULAR, 100_000, 45.0),
        (Priority.RECOVERY, 1000, 5.0),
    ],
)
def test_passes_over_a_job_are_rarer_with_more_training_jobs(priority: Priority, jobs: int, seconds: float) -> None:
    assert wake_after_s(5.0, priority, jobs) == seconds
