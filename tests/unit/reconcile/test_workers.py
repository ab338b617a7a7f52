"""How many workers trainers have, as the status has it: told once, and kept."""

from __future__ import annotations

import pytest

from cpr_contract.codec import from_json, unpack
from cpr_contract.reports import TrainerState
from cpr_contract.spec import MEASURED, JobSpec
from cpr_operator.api.frozen_settings import worker_count
from cpr_operator.api.status import Runtime, WorkerCount
from cpr_operator.api.validate import parse_spec
from cpr_operator.reconcile.lifecycle import runtime
from cpr_operator.reconcile.observe import begin
from cpr_operator.reconcile.reports import apply_reports
from cpr_operator.reconcile.types import ReconcileInput
from simulation.control_plane.run import input_in_mid_training
from support.documents import edited
from support.passes import with_report, with_status

MEASURING = WorkerCount(reason="the first leader measures")
TWO = WorkerCount(count=2, reason="measured")


def with_workers(world: ReconcileInput, workers: WorkerCount | None) -> ReconcileInput:
    runtime = world.job.status.runtime
    assert runtime is not None
    return with_status(world, runtime=runtime.evolve(workers=workers))


def telling(world: ReconcileInput, workers: int | None, state: TrainerState = TrainerState.TRAINING) -> ReconcileInput:
    """The leader reports this."""
    return with_report(world, "trainer/0", workers=workers, workers_reason="told", state=state)


def after(world: ReconcileInput) -> WorkerCount | None:
    found = apply_reports(begin(world)).status.runtime
    assert found is not None
    return found.workers


async def test_measured_workers_are_set_once() -> None:
    world = await input_in_mid_training(2)
    assert after(telling(with_workers(world, MEASURING), 3)) == WorkerCount(count=3, reason="told")
    assert after(telling(with_workers(world, TWO), 3)) == TWO


@pytest.mark.parametrize(
    ("state", "count"), [(TrainerState.TRAINING, 1), (TrainerState.LOADING, None), (TrainerState.JOINING, None)]
)
async def test_leader_without_a_worker_measurement_has_one_worker(state: TrainerState, count: int | None) -> None:
    found = after(telling(with_workers(await input_in_mid_training(1), MEASURING), None, state))
    assert found is not None
    assert found.count == count
    assert count is None or "does not measure" in found.reason


@pytest.mark.parametrize(("before", "told"), [(TWO, 2), (MEASURING, MEASURED)])
async def test_resumed_job_keeps_its_workers_or_measures(before: WorkerCount, told: int) -> None:
    """It states them, and needs no document in the store any more."""
    again = runtime(with_workers(await input_in_mid_training(1), before), None)
    assert again.workers == before
    assert from_json(JobSpec, unpack(again.job_spec)).workers == told


@pytest.mark.parametrize(("told", "count"), [(4, 4), (None, 1)])
async def test_job_of_an_earlier_release_keeps_its_workers(told: int | None, count: int) -> None:
    """Its spec may state nothing, which means Auto in a new job."""
    world = with_workers(await input_in_mid_training(1), None)
    before = world.job.status.runtime
    assert isinstance(before, Runtime)
    described = unpack(before.job_spec)
    number = from_json(JobSpec, described).workers
    described = described.replace(f'"workers":{number}', f'"workers":{told}' if told else '"other":0')
    found = worker_count(parse_spec(edited({})["spec"]), before.evolve(job_spec=described))
    assert found.count == count
    assert "earlier release" in found.reason
