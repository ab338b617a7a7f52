"""The number of workers in the status: measured once, and kept."""

from __future__ import annotations

import pytest

from cpr_contract.codec import from_json, unpack
from cpr_contract.reports import TrainerState
from cpr_contract.spec import MEASURED, JobSpec
from cpr_operator.api.frozen_settings import worker_count
from cpr_operator.api.status import Runtime, WorkerCount
from cpr_operator.api.validate import parse_spec
from cpr_operator.reconcile.apply_reports import apply_reports
from cpr_operator.reconcile.observe import begin
from cpr_operator.reconcile.phases import runtime
from cpr_operator.reconcile.types import ReconcileInput
from simulation.control_plane.run import input_in_mid_training
from support.documents import edited
from support.reconcile_inputs import with_report, with_status

MEASURING = WorkerCount(reason="the first leader measures")
TWO = WorkerCount(count=2, reason="measured")


def with_workers(observed: ReconcileInput, workers: WorkerCount | None) -> ReconcileInput:
    runtime = observed.job.status.runtime
    assert runtime is not None
    return with_status(observed, runtime=runtime.evolve(workers=workers))


def with_measurement(
    observed: ReconcileInput, workers: int | None, state: TrainerState = TrainerState.TRAINING
) -> ReconcileInput:
    """The leader reports this."""
    return with_report(observed, "trainer/0", workers=workers, workers_reason="measured", state=state)


def after(observed: ReconcileInput) -> WorkerCount | None:
    found = apply_reports(begin(observed)).status.runtime
    assert found is not None
    return found.workers


async def test_measured_workers_are_set_once() -> None:
    observed = await input_in_mid_training(2)
    assert after(with_measurement(with_workers(observed, MEASURING), 3)) == WorkerCount(count=3, reason="measured")
    assert after(with_measurement(with_workers(observed, TWO), 3)) == TWO


@pytest.mark.parametrize(
    ("state", "count"), [(TrainerState.TRAINING, 1), (TrainerState.LOADING, None), (TrainerState.JOINING, None)]
)
async def test_leader_without_a_worker_measurement_has_one_worker(state: TrainerState, count: int | None) -> None:
    found = after(with_measurement(with_workers(await input_in_mid_training(1), MEASURING), None, state))
    assert found is not None
    assert found.count == count
    assert count is None or "does not measure" in found.reason


@pytest.mark.parametrize(("before", "workers"), [(TWO, 2), (MEASURING, MEASURED)])
async def test_resumed_job_keeps_its_workers_or_measures(before: WorkerCount, workers: int) -> None:
    """It states them, and needs no document in the store any more."""
    again = runtime(with_workers(await input_in_mid_training(1), before), None)
    assert again.workers == before
    assert from_json(JobSpec, unpack(again.job_spec)).workers == workers


@pytest.mark.parametrize(("stated", "count"), [(4, 4), (None, 1)])
async def test_job_of_an_earlier_release_keeps_its_workers(stated: int | None, count: int) -> None:
    """Its spec may state nothing, which means Auto in a new job."""
    observed = with_workers(await input_in_mid_training(1), None)
    before = observed.job.status.runtime
    assert isinstance(before, Runtime)
    described = unpack(before.job_spec)
    number = from_json(JobSpec, described).workers
    described = described.replace(f'"workers":{number}', f'"workers":{stated}' if stated else '"other":0')
    found = worker_count(parse_spec(edited({})["spec"]), before.evolve(job_spec=described))
    assert found.count == count
    assert "earlier release" in found.reason
