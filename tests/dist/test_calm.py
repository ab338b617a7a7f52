"""Jobs of real processes that lose nothing: what they end in is what one process alone ends in."""

from dataclasses import replace
from pathlib import Path

import pytest

from cpr_contract.choices import Device
from cpr_contract.reports import ExitCode
from support.devices import NO_GPU
from support.local_job import LocalJob, small_job, small_steps
from support.model import assert_close, saved_model, train_alone

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("prefetch", "workers", "device"),
    [(1, 1, "cpu"), (3, 1, "cpu"), (1, 2, "cpu"), pytest.param(1, 1, "cuda", marks=NO_GPU)],
)
def test_one_trainer_equals_the_oracle_to_rounding(tmp_path: Path, prefetch: int, workers: int, device: Device) -> None:
    """Rows are read one step after the other, or, asked for three steps ahead, as they were three steps before."""
    job = replace(small_job(tmp_path, samples=20_000), prefetch=prefetch, workers=workers, device=device)
    with LocalJob(job, tmp_path) as running:
        running.start()
        anchor = running.result()
    assert anchor.samples == 20_000
    assert_close(saved_model(job, anchor, tmp_path / "model"), train_alone(job))


@pytest.mark.parametrize(("trainers", "device"), [(2, "cpu"), (3, "cpu"), pytest.param(2, "cuda", marks=NO_GPU)])
def test_several_trainers_learn_as_well(tmp_path: Path, trainers: int, device: Device) -> None:
    job = small_steps(small_job(tmp_path, samples=60_000, trainers=trainers, shards=3))
    job = replace(job, device=device)
    with LocalJob(job, tmp_path) as running:
        running.start()
        anchor = running.result()
    model, expected = saved_model(job, anchor, tmp_path / "model"), train_alone(job)
    assert model.auc is not None
    assert abs(model.auc - expected.auc) < 0.002
    assert model.scored == 48_000, "every sample is scored once, but for the first fifth"


def test_a_trainer_without_the_gpu_of_its_job_ends_and_says_so(tmp_path: Path) -> None:
    job = replace(small_job(tmp_path, samples=20_000), device="cuda")
    with LocalJob(job, tmp_path, environ={"CUDA_VISIBLE_DEVICES": ""}) as running:
        running.start()
        trainer = running.trainers[0]
        assert running.wait_exit(trainer) == ExitCode.BAD_SPEC, "which is not tried again"
    assert trainer.problem.reason == "BadModel"
    assert "spec.trainers.device is cuda" in trainer.problem.message
    assert "set spec.trainers.device to cpu" in trainer.problem.remedy
