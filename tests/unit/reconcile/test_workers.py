"""How many workers trainers have, as the status has it: told once, and kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpr_contract.codec import from_json, unpack
from cpr_contract.reports import TrainerReport, TrainerState
from cpr_contract.spec import MEASURED, JobSpec
from cpr_operator.api.status import Runtime, WorkersInForce
from cpr_operator.api.validate import parse_spec
from cpr_operator.api.workers import workers_again
from cpr_operator.reconcile.apply_reports import apply_reports
from cpr_operator.reconcile.frozen import runtime
from cpr_operator.reconcile.observe import begin
from cpr_operator.reconcile.pass_ import PassInput
from simulation.control_plane.run import input_in_mid_training
from support.documents import edited

MEASURING = WorkersInForce(reason="the first leader measures")
TWO = WorkersInForce(count=2, reason="measured")


def with_workers(world: PassInput, workers: WorkersInForce | None) -> PassInput:
    status = world.job.status
    assert status.runtime is not None
    status = status.evolve(runtime=status.runtime.evolve(workers=workers))
    return replace(world, job=replace(world.job, status=status))


def telling(world: PassInput, rank: int, workers: int | None, state: TrainerState = TrainerState.TRAINING) -> PassInput:
    uid = world.job.status.trainers[rank].uid
    report = world.reports[uid]
    assert isinstance(report, TrainerReport)
    told = replace(report, workers=workers, workers_reason="told", state=state)
    return replace(world, reports={**world.reports, uid: told})


def after(world: PassInput) -> WorkersInForce | None:
    found = apply_reports(begin(world)).status.runtime
    assert found is not None
    return found.workers


async def test_what_the_leader_measured_stands_in_the_status() -> None:
    world = with_workers(await input_in_mid_training(2), MEASURING)
    assert after(telling(world, 0, 3)) == WorkersInForce(count=3, reason="told")


async def test_what_is_known_is_never_told_anew() -> None:
    world = with_workers(await input_in_mid_training(1), TWO)
    assert after(telling(world, 0, 3)) == TWO


@pytest.mark.parametrize(
    ("state", "count"), [(TrainerState.TRAINING, 1), (TrainerState.LOADING, None), (TrainerState.JOINING, None)]
)
async def test_a_leader_that_trains_and_tells_of_no_workers_is_of_an_older_image(
    state: TrainerState, count: int | None
) -> None:
    found = after(telling(with_workers(await input_in_mid_training(1), MEASURING), 0, None, state))
    assert found is not None
    assert found.count == count
    assert count is None or "earlier release" in found.reason


async def test_a_job_that_resumes_has_what_it_had_and_states_it() -> None:
    """So it needs no document in the store any more."""
    world = with_workers(await input_in_mid_training(1), TWO)
    again = runtime(world, None)
    assert again.workers == TWO
    assert from_json(JobSpec, unpack(again.job_spec)).workers == 2


async def test_a_job_that_resumes_before_anything_was_measured_measures() -> None:
    again = runtime(with_workers(await input_in_mid_training(1), MEASURING), None)
    assert again.workers == MEASURING
    assert from_json(JobSpec, unpack(again.job_spec)).workers == MEASURED


@pytest.mark.parametrize(("told", "count"), [(4, 4), (None, 1)])
async def test_a_job_that_an_earlier_release_started_keeps_what_its_pods_were_told(
    told: int | None, count: int
) -> None:
    """Its spec may state nothing, which means Auto in a new job."""
    world = with_workers(await input_in_mid_training(1), None)
    before = world.job.status.runtime
    assert isinstance(before, Runtime)
    described = unpack(before.job_spec)
    number = from_json(JobSpec, described).workers
    described = described.replace(f'"workers":{number}', f'"workers":{told}' if told else '"other":0')
    found = workers_again(parse_spec(edited({})["spec"]), before.evolve(job_spec=described))
    assert found.count == count
    assert "earlier release" in found.reason
