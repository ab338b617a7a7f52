"""Trainers without lockstep train to one step while a shard dies: another number continues from there."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from cpr_contract.reports import TrainerState
from cpr_trainer.checkpoint.format.records import is_even
from cpr_trainer.store import open_store
from support.local_job import small_job
from support.resized_job import resized, stop

pytestmark = [pytest.mark.dist, pytest.mark.timeout(800)]
SAMPLES, BATCH = 60_000, 100


def test_shard_killed_before_the_common_step_takes_the_cut_with_its_losses(tmp_path: Path) -> None:
    job = replace(small_job(tmp_path, samples=SAMPLES, trainers=2), dense_sync="ShadowMA")
    with resized(job, tmp_path / "run-1", 1, None) as running:
        running.interval_s = 3600.0
        running.start()
        running.reach(SAMPLES // 6)
        running.kill(running.trainers[1], signal.SIGSTOP)
        running.meet = True
        running.publish()
        running.wait_for(lambda: running.trainer().state is TrainerState.MEETING, "the leader waits")
        running.kill(running.shards[1])
        running.wait_exit(running.shards[1])
        running.replace_shard(1)
        running.kill(running.trainers[1], signal.SIGCONT)
        anchor = running.wait_for(lambda: running.trainer().met, "all have met")
        assert is_even(open_store(job.snapshots.store, None, None), anchor)
        lost = running.shard(1).lost
        assert stop(running) == anchor
    assert lost[0][0] == 0, "nothing was saved before"
    assert SAMPLES // 6 - 3 * BATCH <= lost[0][1] <= lost[-1][1] <= anchor.samples
    with resized(replace(job, trainers=3), tmp_path / "run-2", 2, anchor) as running:
        running.start()
        assert running.result().samples == SAMPLES
