"""The record of a training job, which the operator gives to the leader's pod about once a minute."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import pytest

from cpr_contract import env
from cpr_contract.codec import from_json, unpack
from cpr_contract.records import JobRecord
from cpr_operator.controller.controller import Controller
from cpr_operator.controller.priority import RECORD_S, RECORDS_PER_S, record_pause_s
from simulation.control_plane.cluster import SimulatedCluster
from simulation.control_plane.run import TIMING, Simulation
from simulation.control_plane.workload import Scenario, spec


@pytest.fixture
async def driver() -> Simulation:
    """A job that trains long, with an operator that records it."""
    made = Simulation(Scenario("recorded", (), spec(data__samples=1_000_000)))
    made.cluster.total = 1_000_000
    made.controller = operator_of(made.cluster)
    await made.passes(14)
    return made


def operator_of(cluster: SimulatedCluster) -> Controller:
    return Controller(cluster, lambda: cluster.now, timing=TIMING, rng=random.Random(1), records=True)


def record_of(cluster: SimulatedCluster) -> JobRecord | None:
    annotations = cluster.member("trainer", 0).meta["annotations"]
    text = annotations.get(env.ANNOTATION_HISTORY)
    return None if text is None else from_json(JobRecord, unpack(text))


async def test_leader_gets_a_record_a_minute(driver: Simulation) -> None:
    cluster, began = driver.cluster, driver.cluster.now
    assert driver.status().phase == "Running"
    times = list[float]()
    while cluster.now < began + 3.5 * RECORD_S:
        await driver.passes(1)
        found = record_of(cluster)
        if found is not None and found.written_s not in times:
            times.append(found.written_s)
    assert len(times) == 3
    assert all(later - earlier >= RECORD_S for earlier, later in pairwise(times))
    found = record_of(cluster)
    assert found is not None
    assert json.loads(found.job)["status"]["phase"] == "Running"
    assert "Started" in {event.reason for event in found.events}


async def test_recovery_gives_no_record(driver: Simulation) -> None:
    cluster = driver.cluster
    while (last := record_of(cluster)) is None or cluster.now < last.written_s + RECORD_S - 0.5:
        await driver.passes(1)
    cluster.kill("shard", 1)
    recovering = list[float]()
    while driver.status().phase == "Recovering" or not recovering:
        await driver.passes(1)
        if driver.status().phase == "Recovering":
            recovering.append(cluster.now)
            assert record_of(cluster) == last
    assert recovering[-1] > last.written_s + RECORD_S, "another one is due"


@pytest.mark.parametrize(("jobs", "pause_s"), [(1, RECORD_S), (10_000, 10_000 / RECORDS_PER_S)])
def test_records_of_many_jobs_are_rarer(jobs: int, pause_s: float) -> None:
    assert record_pause_s(jobs) == pause_s
