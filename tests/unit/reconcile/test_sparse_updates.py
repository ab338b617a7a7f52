"""The updates of rows in the status: chosen at the start of a job, and kept until it ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cpr_contract.choices import SparseUpdates
from cpr_contract.codec import from_json, unpack
from cpr_contract.reports import TrainerState
from cpr_contract.spec import JobSpec
from cpr_operator.api.status import SparseUpdatesMode
from cpr_operator.reconcile.apply_reports import apply_reports
from cpr_operator.reconcile.observe import begin
from simulation.control_plane.failpoints import kill
from simulation.control_plane.run import Simulation, input_in_mid_training
from simulation.control_plane.workload import Scenario, spec
from support.reconcile_inputs import with_report

PER_STEP = SparseUpdatesMode(mode="PerStep", reason="all trainers take each step together")
AUTO = {"replicas": 2, "denseSync": "AllReduce", "sparseUpdates": "Auto"}


def settings(driver: Simulation) -> tuple[SparseUpdatesMode | None, SparseUpdates, int]:
    """Return the mode in the status, and the mode and the number of trainers of the pods."""
    runtime = driver.status().runtime
    assert runtime is not None
    job = from_json(JobSpec, unpack(runtime.job_spec))
    return runtime.sparse_updates, job.sparse_updates, job.trainers


async def suspend_and_resume(driver: Simulation, **changes: Any) -> None:
    driver.cluster.set_spec("job", suspend=True)
    await driver.passes(20)
    assert driver.status().phase == "Suspended"
    driver.cluster.set_spec("job", suspend=False, **changes)
    await driver.passes(12)


@pytest.mark.parametrize(
    ("trainers", "mode", "reason"),
    [
        ({"replicas": 2}, "PerStep", "each step together"),
        ({"replicas": 1}, "PerStep", "each step together"),
        ({"replicas": 2, "denseSync": "ShadowMA"}, "PerPush", "shadow mode"),
        ({"replicas": 2, "sparseUpdates": "PerPush"}, "PerPush", "spec.trainers.sparseUpdates"),
    ],
)
async def test_job_keeps_its_mode_through_a_loss_a_suspension_and_a_resize(
    trainers: dict[str, Any], mode: SparseUpdates, reason: str
) -> None:
    driver = Simulation(Scenario("kept", (), spec(trainers=trainers)))
    await driver.passes(12)
    started = settings(driver)
    assert started[0] is not None
    assert (started[0].mode, *started[1:]) == (mode, mode, trainers["replicas"])
    assert reason in started[0].reason
    kill("shard", 1)(driver.cluster)
    await driver.passes(6)
    assert settings(driver) == started
    await suspend_and_resume(driver, trainers={**trainers, "replicas": 3})
    assert settings(driver) == (started[0], mode, 3)


async def test_job_of_an_earlier_release_keeps_updates_per_push() -> None:
    """The new resource definition shows `sparseUpdates: Auto` in it, because that is the default now."""
    driver = Simulation(Scenario("older", (), spec()))
    await driver.passes(12)
    job = driver.cluster.jobs["default", "job"]
    described = job.status["runtime"]["jobSpec"].replace('"sparse_updates":"PerStep"', '"other":0')
    older = {name: value for name, value in job.status["runtime"].items() if name != "sparseUpdates"}
    status = {**job.status, "runtime": {**older, "jobSpec": described}}
    driver.cluster.jobs["default", "job"] = replace(job, status=status)
    driver.take_over()
    await driver.passes(2)
    assert settings(driver) == (None, "PerPush", 2)
    await suspend_and_resume(driver, trainers=AUTO)
    as_before = SparseUpdatesMode(mode="PerPush", reason="an earlier release started the job so")
    assert settings(driver) == (as_before, "PerPush", 2)


@pytest.mark.parametrize(
    ("reported", "state", "mode"),
    [
        ("PerStep", TrainerState.TRAINING, "PerStep"),
        ("PerPush", TrainerState.LOADING, "PerStep"),
        ("PerPush", TrainerState.TRAINING, "PerPush"),
    ],
)
async def test_leader_of_an_earlier_image_sets_updates_per_push(
    reported: SparseUpdates, state: TrainerState, mode: SparseUpdates
) -> None:
    """It ignores the mode in the description of its job, as all pods of that image do."""
    observed = await input_in_mid_training(2)
    runtime = observed.job.status.runtime
    assert runtime is not None
    assert runtime.sparse_updates == PER_STEP
    observed = with_report(observed, "trainer/0", sparse_updates=reported, state=state)
    found = apply_reports(begin(observed)).status.runtime
    assert found is not None
    assert found.sparse_updates is not None
    assert found.sparse_updates.mode == mode
    assert (found.sparse_updates == PER_STEP) is (mode == "PerStep")
    assert mode == "PerStep" or "predates" in found.sparse_updates.reason
