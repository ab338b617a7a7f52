"""Jobs with trainers on a GPU, against the oracle on the processors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from support.devices import NO_GPU
from support.local_job import LocalJob, small_job, small_steps
from support.model import assert_close, saved_model, train_alone

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600), NO_GPU]


def test_one_trainer_on_a_gpu_is_the_oracle_to_rounding(tmp_path: Path) -> None:
    job = replace(small_job(tmp_path, samples=20_000), device="cuda")
    with LocalJob(job, tmp_path) as running:
        running.start()
        anchor = running.result()
    assert anchor.samples == 20_000
    assert_close(saved_model(job, anchor, tmp_path / "model"), train_alone(job))


def test_two_trainers_on_a_gpu_learn_as_well(tmp_path: Path) -> None:
    job = replace(small_steps(small_job(tmp_path, samples=60_000, trainers=2, shards=3)), device="cuda")
    with LocalJob(job, tmp_path) as running:
        running.start()
        anchor = running.result()
    model, expected = saved_model(job, anchor, tmp_path / "model"), train_alone(job)
    assert model.auc is not None
    assert abs(model.auc - expected.auc) < 0.002
    assert model.scored == 48_000, "every sample is scored once, but for the first fifth"
