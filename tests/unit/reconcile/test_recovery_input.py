"""How far training can have come when a shard and the fastest trainer are lost together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpr_contract.reports import ShardReport, TrainerReport
from cpr_operator.reconcile import PassInput
from cpr_operator.reconcile.observe import begin
from cpr_operator.reconcile.pass_ import Report
from cpr_operator.reconcile.recovery_input import STEPS_UNDER_WAY, recovery_input
from simulation.control_plane.run import Simulation
from simulation.control_plane.workload import BATCH, Scenario, spec

STARTED = 700
FASTEST_STEP = 12


async def world_after(dense_sync: str) -> PassInput:
    """Trainer 1, which was at step 12, and shard 0 are gone; trainer 0 has started 700 samples."""
    driver = Simulation(Scenario("half", (), spec(trainers__denseSync=dense_sync)))
    await driver.passes(10)
    world = await driver.pass_input()
    gone = {("trainer", 1), ("shard", 0)}
    pods = tuple(pod for pod in world.pods if (pod.role, pod.index) not in gone)
    reports = dict[str, Report]()
    for pod in pods:
        match world.reports[pod.uid]:
            case TrainerReport() as report:
                reports[pod.uid] = replace(report, samples_started=STARTED)
            case ShardReport() as report:
                reports[pod.uid] = replace(report, applied=(6, FASTEST_STEP))
    return replace(world, pods=pods, reports=reports)


@pytest.mark.parametrize(
    ("dense_sync", "bound"),
    [("AllReduce", STARTED), ("ShadowMA", (FASTEST_STEP + STEPS_UNDER_WAY) * BATCH)],
)
async def test_without_lockstep_shards_know_how_far_the_fastest_was(dense_sync: str, bound: int) -> None:
    world = await world_after(dense_sync)
    given = recovery_input(begin(world))
    assert given is not None
    assert given.trainer_bound == bound
    assert given.dense_charged == (dense_sync == "AllReduce")
