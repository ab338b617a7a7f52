"""Jobs of real processes that lose nothing: what they end in is what one process alone ends in."""

from dataclasses import replace
from pathlib import Path

import pytest

from support.local_job import LocalJob, small_job, small_steps
from support.model import assert_close, saved_model, train_alone

pytestmark = [pytest.mark.dist, pytest.mark.timeout(300)]


@pytest.mark.parametrize(("prefetch", "workers"), [(1, 1), (3, 1), (1, 2)])
def test_one_trainer_equals_the_oracle_to_rounding(tmp_path: Path, prefetch: int, workers: int) -> None:
    """Rows are read one step after the other, or, asked for three steps ahead, as they were three steps before."""
    job = replace(small_job(tmp_path, samples=20_000), prefetch=prefetch, workers=workers)
    with LocalJob(job, tmp_path) as running:
        running.start()
        anchor = running.result()
    assert anchor.samples == 20_000
    assert_close(saved_model(job, anchor, tmp_path / "model"), train_alone(job))


@pytest.mark.parametrize("trainers", [2, 3])
def test_several_trainers_learn_as_well(tmp_path: Path, trainers: int) -> None:
    job = small_steps(small_job(tmp_path, samples=60_000, trainers=trainers, shards=3))
    with LocalJob(job, tmp_path) as running:
        running.start()
        anchor = running.result()
    model, expected = saved_model(job, anchor, tmp_path / "model"), train_alone(job)
    assert model.auc is not None
    assert abs(model.auc - expected.auc) < 0.002
    assert model.scored == 48_000, "every sample is scored once, but for the first fifth"
