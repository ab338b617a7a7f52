"""A job that starts from another job by its name: it waits for an anchor, and keeps the one it began with."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from cpr_contract.codec import unpack
from cpr_operator.api.status import SourceJob, Status
from cpr_operator.controller.job_reader import job_of
from cpr_operator.reconcile.deletion import anchors_in_use
from cpr_operator.reconcile.restore_source import source_anchor_in
from simulation.control_plane.workload import spec
from support.controller_harness import ControllerHarness


def begun_from(harness: ControllerHarness) -> str | None:
    runtime = harness.status.runtime
    assert runtime is not None
    snapshots = json.loads(unpack(runtime.job_spec))["snapshots"]
    assert snapshots["by_name"]["missing"] == "Initialise"
    found: str | None = snapshots["restore_from"]
    return found


def set_status(harness: ControllerHarness, **status: Any) -> None:
    harness.cluster.jobs["default", "yesterday"] = replace(harness.cluster.jobs["default", "yesterday"], status=status)


async def test_it_waits_for_an_anchor_and_stays_with_that_one() -> None:
    harness = ControllerHarness(spec(restoreFrom={"job": "yesterday", "missing": "Initialise"}))
    wake = await harness.go(3)
    assert (harness.status.phase, harness.cluster.pods, wake) == ("Pending", {}, 15)
    assert harness.condition("PodsReady")[:2] == ("False", "AnchorAwaited")
    assert "yesterday does not exist" in harness.condition("PodsReady")[2]
    harness.cluster.add_job("yesterday", spec(), uid="y")
    await harness.go()
    assert "has no anchor yet" in harness.condition("PodsReady")[2]
    assert not harness.cluster.events, "to wait is nothing to warn of"
    set_status(harness, phase="Running", anchors=[{"key": "y/first"}])
    await harness.go(10)
    assert (harness.status.phase, begun_from(harness)) == ("Running", "y/first")
    set_status(harness, phase="Succeeded", result={"key": "y/result"})
    harness.cluster.set_spec("job", suspend=True)
    await harness.go(20)
    assert harness.status.phase == "Suspended"
    harness.cluster.set_spec("job", suspend=False)
    await harness.go(10)
    assert (harness.status.phase, begun_from(harness)) == ("Running", "y/first")


DAILY = {"restoreFrom": {"latestOf": {"matchLabels": {"series": "clicks"}, "none": "Initialise"}}}


async def until_over(harness: ControllerHarness, name: str) -> Status:
    for _ in range(400):
        harness.cluster.tick(0.25)
        await harness.controller.run_pass("default", name)
        status = Status.model_validate(harness.cluster.jobs["default", name].status)
        if status.phase == "Succeeded":
            return status
    raise AssertionError(f"{name} is {status.phase}")


def start_messages(harness: ControllerHarness) -> list[str]:
    return [event.message for event in harness.cluster.events.values() if event.reason == "Started"]


async def test_each_day_starts_from_the_model_of_the_day_before() -> None:
    harness = ControllerHarness()
    harness.cluster.jobs.clear()
    for day in ("monday", "tuesday"):
        harness.cluster.tick(1)
        harness.cluster.add_job(day, spec() | DAILY, uid=f"uid-{day}", labels={"series": "clicks"})
    harness.cluster.add_job("other", spec(), uid="uid-other", labels={"series": "views"})
    await harness.controller.run_pass("default", "tuesday")
    waiting = Status.model_validate(harness.cluster.jobs["default", "tuesday"].status)
    assert (waiting.phase, waiting.conditions[0].reason) == ("Pending", "AnchorAwaited")
    assert "monday is older than this job, and is Pending" in waiting.conditions[0].message
    monday = await until_over(harness, "monday")
    assert monday.source_job is None
    (first,) = start_messages(harness)
    harness.cluster.events.clear()
    tuesday = await until_over(harness, "tuesday")
    assert monday.result is not None
    assert tuesday.source_job == SourceJob(job="monday", key=monday.result.key)
    assert tuesday.runtime is not None
    assert source_anchor_in(tuesday.runtime.job_spec) == monday.result.key
    (second,) = start_messages(harness)
    assert "from first values: spec.restoreFrom.latestOf matches no job that has succeeded" in first
    assert f"from the model of monday: {monday.result.key}" in second


async def test_chosen_anchor_stays_when_a_newer_job_succeeds_and_is_spared() -> None:
    harness = ControllerHarness(spec() | DAILY)
    saves = spec(snapshots__deleteWithJob=True)
    harness.cluster.add_job("yesterday", saves, uid="y", labels={"series": "clicks"})
    set_status(harness, phase="Succeeded", completionTime="2026-01-01T00:00:00Z", result={"key": "y/result"})
    await harness.go(2)
    assert harness.status.source_job == SourceJob(job="yesterday", key="y/result")
    harness.cluster.jobs["default", "yesterday"] = replace(harness.cluster.jobs["default", "yesterday"], status={})
    going = replace(job_of(harness.cluster.jobs["default", "yesterday"]), deleting=True, has_finalizer=True)
    assert anchors_in_use(going, await harness.cluster.list_jobs(("default",))) == ("y/result",)
    harness.cluster.add_job("newer", spec(), uid="n", labels={"series": "clicks"})
    harness.cluster.jobs["default", "newer"] = replace(
        harness.cluster.jobs["default", "newer"],
        status={"phase": "Succeeded", "completionTime": "2026-01-02T00:00:00Z", "result": {"key": "n/result"}},
    )
    harness.cluster.set_spec("job", suspend=True)
    await harness.go(20)
    assert harness.status.phase == "Suspended"
    harness.cluster.set_spec("job", suspend=False)
    await harness.go(10)
    assert harness.status.source_job == SourceJob(job="yesterday", key="y/result")
    assert harness.status.runtime is not None
    assert source_anchor_in(harness.status.runtime.job_spec) == "y/result"
