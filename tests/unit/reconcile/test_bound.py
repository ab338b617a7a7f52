"""How far training can have come when a shard and the fastest trainer are lost together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpr_contract.reports import ShardReport, TrainerReport
from cpr_operator.reconcile import World
from cpr_operator.reconcile.observe import observe
from cpr_operator.reconcile.situation import STEPS_UNDER_WAY, situation_of
from cpr_operator.reconcile.world import Report
from support.driver import BATCH, Driver, Scenario, spec

STARTED = 700
FASTEST_STEP = 12


async def world_after(dense_sync: str) -> World:
    """Trainer 1, which was at step 12, and shard 0 are gone; trainer 0 has started 700 samples."""
    driver = Driver(Scenario("half", (), spec(trainers__denseSync=dense_sync)))
    await driver.passes(10)
    world = await driver.world()
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
    situation = situation_of(world, world.job.status, observe(world))
    assert situation is not None
    assert situation.trainer_bound == bound
    assert situation.dense_charged == (dense_sync == "AllReduce")
