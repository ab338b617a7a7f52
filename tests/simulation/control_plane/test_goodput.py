"""The time of whole jobs in virtual time. Every run checks that the parts add up (`Simulation`, `checker.py`)."""

from __future__ import annotations

from typing import Any

from cpr_operator.api.goodput_status import Goodput
from cpr_operator.api.status import Status
from cpr_operator.goodput import parts_ms
from simulation.control_plane.failpoints import kill
from simulation.control_plane.run import TICK_S, RunResult, Simulation
from simulation.control_plane.scenarios import ALL, HALF
from simulation.control_plane.workload import (
    BATCH,
    TOTAL,
    Action,
    Scenario,
    Trigger,
    after,
    case,
    phase,
    resume,
    spec,
    suspend,
)

#: The virtual seconds in which the simulated trainers train all samples: a step a tick.
TRAINING_S = TOTAL / BATCH * TICK_S


async def goodput(*steps: tuple[Trigger, Action], **changes: Any) -> tuple[RunResult, Goodput]:
    job = case("job", *steps, spec=spec(**changes), replaced=ALL, deadline_s=2000)
    result = await Simulation(job).run()
    assert result.status.goodput is not None
    return result, result.status.goodput


async def test_calm_job_spends_its_training_time_on_training() -> None:
    _, found = await goodput()
    parts = parts_ms(found)
    assert parts["productive"] + parts["saving"] == 1000 * TRAINING_S
    assert {name for name, value in parts.items() if value} == {"productive", "saving", "starting", "finishing"}
    assert found.ratio == round(found.productive_seconds / found.wall_seconds, 6)


async def test_suspension_is_time_of_its_own_and_causes_no_writes() -> None:
    stopped = ((HALF, suspend), (phase("Suspended"), lambda _: None))
    shorter, calm = await goodput(*stopped, (after(60), resume))
    longer, found = await goodput(*stopped, (after(660), resume))
    assert found.lost.suspended - calm.lost.suspended == 600
    assert found.productive_seconds == calm.productive_seconds
    assert len(longer.cluster.statuses) == len(shorter.cluster.statuses)


async def test_killed_shard_costs_time_until_training_continues() -> None:
    result, found = await goodput((HALF, kill("shard", 1)))
    (failure,) = result.status.failures
    assert failure.recovery_seconds is not None
    assert abs(found.lost.recovering - failure.recovery_seconds) <= 2 * TICK_S
    assert found.lost.repeated == 0


async def test_rollback_repeats_the_samples_since_the_anchor() -> None:
    result, found = await goodput((HALF, kill("shard", 1)), recovery__mode="Full")
    assert result.status.budget is not None
    assert result.status.budget.rollbacks == 1
    statuses = [Status.model_validate(document) for document in result.cluster.statuses]
    back = next(each for each in statuses if each.phase == "RollingBack")
    assert back.goodput is not None
    assert back.goodput.samples == back.progress.samples < back.goodput.furthest_samples
    assert abs(found.lost.repeated - result.status.overhead.lost_seconds) <= 2 * TICK_S
    assert abs(found.productive_seconds + found.lost.saving - TRAINING_S) <= 2 * TICK_S


async def test_absent_operator_leaves_training_productive() -> None:
    simulation = Simulation(Scenario("away", (), spec(data__samples=10**6)))
    simulation.cluster.total = 10**6
    await simulation.passes(14)
    for _ in range(round(600 / TICK_S)):
        simulation.cluster.tick(TICK_S)
    await simulation.passes(1)
    found = simulation.status().goodput
    assert found is not None
    assert {name for name, value in parts_ms(found).items() if value} == {"productive", "saving", "starting"}
