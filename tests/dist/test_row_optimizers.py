"""A job whose tables have different optimizers, and lose a shard on the way, ends where the oracle does."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from cpr_contract.exits import ExitCode
from support.local_job import LocalJob, small_job
from support.model import assert_close, saved_model, train_alone
from support.row_optimizers import mixed

pytestmark = [pytest.mark.dist, pytest.mark.timeout(300)]
SAMPLES = 40_000


def kill_and_roll_back(running: LocalJob) -> None:
    """All go back to an anchor: nothing but steps is lost."""
    running.wait_for(lambda: running.trainer().anchors, "there is an anchor")
    running.reach(SAMPLES // 2)
    running.kill(running.shards[1])
    running.roll_back(running.trainer().anchors[-1])


def stop(running: LocalJob) -> None:
    """The shard saves all that it has, and its successor goes on from there."""
    running.reach(SAMPLES // 2)
    running.kill(running.shards[1], signal.SIGTERM)
    assert running.wait_exit(running.shards[1]) == ExitCode.FLUSHED


@pytest.mark.parametrize("lose", [kill_and_roll_back, stop])
def test_a_job_of_several_optimizers_that_lost_a_shard_ends_like_the_oracle(tmp_path: Path, lose: Callable[[LocalJob], None]
) -> None:
    job = mixed(small_job(tmp_path, samples=SAMPLES))
    with LocalJob(job, tmp_path) as running:
        running.start()
        lose(running)
        running.replace_shard(1)
        anchor = running.result()
        assert running.shards[1].incarnation == 2
    assert_close(saved_model(job, anchor, tmp_path / "model"), train_alone(job))
