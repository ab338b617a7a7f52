"""A job that starts from another job by its name: it waits for an anchor, and keeps the one it began with."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from cpr_contract.codec import unpack
from support.driver import spec
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


async def test_a_job_of_another_store_is_refused_by_field() -> None:
    house = House(spec(restoreFrom={"job": "yesterday"}))
    house.cluster.add_job("yesterday", spec(snapshots__store__bucket="others"), uid="y")
    tell(house, phase="Succeeded", result={"key": "y/result"})
    await house.go(3)
    assert (house.status.phase, house.condition("PodsReady")[1]) == ("Pending", "AnchorRefused")
    (event,) = house.cluster.events.values()
    assert event.message.startswith("spec.restoreFrom.job: yesterday saves into another store, bucket or prefix; ")
