"""A job that starts from another job by its name: it waits for an anchor, and keeps the one it began with."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from cpr_contract.codec import unpack
from cpr_operator.api.status import Ancestor, Status
from cpr_operator.controller.reader import anchors_in_use, job_of
from cpr_operator.reconcile.restore_source import source_anchor_in
from simulation.control_plane.workload import spec
from support.house import House


def begun_from(house: House) -> str | None:
    runtime = house.status.runtime
    assert runtime is not None
    snapshots = json.loads(unpack(runtime.job_spec))["snapshots"]
    assert snapshots["by_name"]["missing"] == "Initialise"
    found: str | None = snapshots["restore_from"]
    return found


def tell(house: House, **status: Any) -> None:
    house.cluster.jobs["default", "yesterday"] = replace(house.cluster.jobs["default", "yesterday"], status=status)


async def test_it_waits_for_an_anchor_and_stays_with_that_one() -> None:
    house = House(spec(restoreFrom={"job": "yesterday", "missing": "Initialise"}))
    wake = await house.go(3)
    assert (house.status.phase, house.cluster.pods, wake) == ("Pending", {}, 15)
    assert house.condition("PodsReady")[:2] == ("False", "AnchorAwaited")
    assert "yesterday does not exist" in house.condition("PodsReady")[2]
    house.cluster.add_job("yesterday", spec(), uid="y")
    await house.go()
    assert "has no anchor yet" in house.condition("PodsReady")[2]
    assert not house.cluster.events, "to wait is nothing to warn of"
    tell(house, phase="Running", anchors=[{"key": "y/first"}])
    await house.go(10)
    assert (house.status.phase, begun_from(house)) == ("Running", "y/first")
    tell(house, phase="Succeeded", result={"key": "y/result"})
    house.cluster.set_spec("job", suspend=True)
    await house.go(20)
    assert house.status.phase == "Suspended"
    house.cluster.set_spec("job", suspend=False)
    await house.go(10)
    assert (house.status.phase, begun_from(house)) == ("Running", "y/first")


DAILY = {"restoreFrom": {"latestOf": {"matchLabels": {"series": "clicks"}, "none": "Initialise"}}}


async def until_over(house: House, name: str) -> Status:
    for _ in range(400):
        house.cluster.tick(0.25)
        await house.controller.run_pass("default", name)
        status = Status.model_validate(house.cluster.jobs["default", name].status)
        if status.phase == "Succeeded":
            return status
    raise AssertionError(f"{name} is {status.phase}")


def told_of_start(house: House) -> list[str]:
    return [event.message for event in house.cluster.events.values() if event.reason == "Started"]


async def test_each_day_starts_from_the_model_of_the_day_before() -> None:
    house = House()
    house.cluster.jobs.clear()
    for day in ("monday", "tuesday"):
        house.cluster.tick(1)
        house.cluster.add_job(day, spec() | DAILY, uid=f"uid-{day}", labels={"series": "clicks"})
    house.cluster.add_job("other", spec(), uid="uid-other", labels={"series": "views"})
    await house.controller.run_pass("default", "tuesday")
    waiting = Status.model_validate(house.cluster.jobs["default", "tuesday"].status)
    assert (waiting.phase, waiting.conditions[0].reason) == ("Pending", "AnchorAwaited")
    assert "monday is older than this job, and is Pending" in waiting.conditions[0].message
    monday = await until_over(house, "monday")
    assert monday.ancestor is None
    (first,) = told_of_start(house)
    house.cluster.events.clear()
    tuesday = await until_over(house, "tuesday")
    assert monday.result is not None
    assert tuesday.ancestor == Ancestor(job="monday", key=monday.result.key)
    assert tuesday.runtime is not None
    assert source_anchor_in(tuesday.runtime.job_spec) == monday.result.key
    (second,) = told_of_start(house)
    assert "from first values: spec.restoreFrom.latestOf matches no job that has succeeded" in first
    assert f"from the model of monday: {monday.result.key}" in second


async def test_chosen_anchor_stays_when_a_newer_job_succeeds_and_is_spared() -> None:
    house = House(spec() | DAILY)
    saves = spec(snapshots__deleteWithJob=True)
    house.cluster.add_job("yesterday", saves, uid="y", labels={"series": "clicks"})
    tell(house, phase="Succeeded", completionTime="2026-01-01T00:00:00Z", result={"key": "y/result"})
    await house.go(2)
    assert house.status.ancestor == Ancestor(job="yesterday", key="y/result")
    house.cluster.jobs["default", "yesterday"] = replace(house.cluster.jobs["default", "yesterday"], status={})
    going = replace(job_of(house.cluster.jobs["default", "yesterday"]), deleting=True, has_finalizer=True)
    assert await anchors_in_use(house.cluster, going) == ("y/result",)
    house.cluster.add_job("newer", spec(), uid="n", labels={"series": "clicks"})
    house.cluster.jobs["default", "newer"] = replace(
        house.cluster.jobs["default", "newer"],
        status={"phase": "Succeeded", "completionTime": "2026-01-02T00:00:00Z", "result": {"key": "n/result"}},
    )
    house.cluster.set_spec("job", suspend=True)
    await house.go(20)
    assert house.status.phase == "Suspended"
    house.cluster.set_spec("job", suspend=False)
    await house.go(10)
    assert house.status.ancestor == Ancestor(job="yesterday", key="y/result")
    assert house.status.runtime is not None
    assert source_anchor_in(house.status.runtime.job_spec) == "y/result"
