"""A rollback of real processes, in place: all go back to one anchor, and train again what it undoes."""

from pathlib import Path

import pytest

from cpr_contract.reports import ShardState
from support.local_job import LocalJob, small_job
from support.model import SavedModel, assert_same, saved_model
from support.warm_start import run_slowly

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]
SAMPLES = 60_000


@pytest.mark.parametrize("to_anchor", [True, False], ids=["to an anchor", "to step 0"])
def test_after_a_rollback_training_ends_where_it_would_have_ended(
    tmp_path: Path, calm: SavedModel, *, to_anchor: bool
) -> None:
    job = small_job(tmp_path, samples=SAMPLES)
    with LocalJob(job, tmp_path) as running:
        running.start(run_slowly)
        running.wait_for(lambda: running.trainer().anchors, "there is an anchor")
        running.reach(SAMPLES // 2)
        anchor = running.trainer().anchors[-1] if to_anchor else None
        before = [member.process for member in running.everyone]
        running.roll_back(anchor)
        running.wait_for(
            lambda: all(
                (report := running.shard(index)).counters.generation == 2 and report.state is ShardState.READY
                for index in range(2)
            ),
            "all shards are back",
        )
        result = running.result()
        assert [member.process for member in running.everyone] == before, "in place"
        assert all(running.shard(index).lost == () for index in range(2))
    assert (result.generation, result.samples) == (2, SAMPLES)
    assert_same(saved_model(job, result, tmp_path / "model"), calm)


def test_a_shard_lost_with_the_rollback_restores_the_anchor_too(tmp_path: Path, calm: SavedModel) -> None:
    job = small_job(tmp_path, samples=SAMPLES)
    with LocalJob(job, tmp_path) as running:
        running.start(run_slowly)
        running.wait_for(lambda: running.trainer().anchors, "there is an anchor")
        running.reach(SAMPLES // 2)
        running.kill(running.shards[1])
        running.roll_back(running.trainer().anchors[-1])
        running.replace_shard(1)
        result = running.result()
        assert all(running.shard(index).lost == () for index in range(2))
    assert_same(saved_model(job, result, tmp_path / "model"), calm)
