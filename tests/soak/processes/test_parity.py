"""Shards of real processes that keep parity for each other, killed while there is no save of them at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cpr_contract.spec import JobSpec
from cpr_trainer.checkpoint.format.records import read_anchor
from cpr_trainer.store import open_store
from support.local_job import LocalJob, small_job
from support.warm_start import run_slowly

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]
SAMPLES = 60_000


def protected(folder: Path, data_shards: int, shards: int) -> JobSpec:
    job = small_job(folder, samples=SAMPLES)
    return replace(job, shards=shards, replay_bytes=64 << 20, parity_shards=data_shards)


def test_rebuilt_shard_reaches_the_floor_that_two_trainers_report(tmp_path: Path) -> None:
    """The floor is the last step that parity holds of every rank, whichever rank was ahead at the flush."""
    job = replace(protected(tmp_path, 1, 2), trainers=2)
    with LocalJob(job, tmp_path, interval_s=600.0) as running:
        running.start(run_slowly)
        for turn in (1, 2, 3):
            running.reach(turn * SAMPLES // 5)
            running.wait_for(lambda: (running.shard(1).protected_samples or 0) > 0, "parity has it")
            running.kill(running.shards[1])
            running.wait_exit(running.shards[1])
            told = [running.trainer(rank).shard_protected[1] for rank in (0, 1)]
            assert max(told) > 0
            running.floors[1] = max(told)
            running.replace_shard(1)
            running.wait_for(lambda: running.shard(1).resumed_samples is not None, "all pushes are there again")
            report = running.shard(1)
            assert report.rebuilt
            assert (report.restored_samples or 0) >= max(told)
            assert (report.lost, report.row_updates and report.row_updates.lost) == ((), 0)
        anchor = running.result()
    assert read_anchor(open_store(job.snapshots.store, None, None), anchor).lost == ((), ())


def test_shard_and_trainer_together_lose_at_most_one_flush_of_that_rank(tmp_path: Path) -> None:
    """Updates that only the lost trainer kept are reported as lost; those in parity are rebuilt."""
    job = replace(protected(tmp_path, 1, 2), trainers=2)
    with LocalJob(job, tmp_path, interval_s=600.0) as running:
        running.start()
        running.reach(SAMPLES // 3)
        running.wait_for(lambda: (running.shard(1).protected_samples or 0) > 0, "parity has it")
        running.kill(running.shards[1])
        running.kill(running.trainers[1])
        for member in (running.shards[1], running.trainers[1]):
            running.wait_exit(member)
        kept = running.trainer(0).shard_protected[1]
        stood_at = running.trainer(0).samples_started
        running.replace_shard(1)
        running.replace_trainers(1, leader=0)
        running.wait_for(lambda: running.shard(1).resumed_samples is not None, "all pushes are there again")
        report, anchor = running.shard(1), running.result()
    assert report.rebuilt
    assert all(kept <= first < end <= stood_at for first, end in report.lost)
    assert read_anchor(open_store(job.snapshots.store, None, None), anchor).lost[1] == report.lost
