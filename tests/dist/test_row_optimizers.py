"""A job whose tables have different optimizers, and lose a shard on the way, ends where the oracle does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.local_job import LocalJob, small_job
from support.lost_shards import WITHOUT_LOSS
from support.model import assert_close, saved_model, train_alone
from support.row_optimizers import mixed
from support.warm_start import run_slowly

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]
SAMPLES = 40_000


@pytest.mark.parametrize("lose", WITHOUT_LOSS)
def test_a_job_of_several_optimizers_that_lost_a_shard_ends_like_the_oracle(
    tmp_path: Path, lose: Callable[[LocalJob], None]
) -> None:
    job = mixed(small_job(tmp_path, samples=SAMPLES))
    with LocalJob(job, tmp_path) as running:
        running.start(run_slowly)
        lose(running)
        running.replace_shard(1)
        anchor = running.result()
        assert running.shards[1].incarnation == 2
    assert_close(saved_model(job, anchor, tmp_path / "model"), train_alone(job))
