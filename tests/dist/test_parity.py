"""Shards of real processes that keep parity for each other, killed while there is no save of them at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cpr_contract.reports import ShardReport
from cpr_contract.spec import JobSpec
from cpr_trainer.checkpoint.format.records import read_anchor
from cpr_trainer.store import open_store
from support.local_job import LocalJob, small_job
from support.model import SavedModel, assert_same, saved_model
from support.warm_start import run_slowly

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]
SAMPLES = 60_000


def protected(folder: Path, data_shards: int, shards: int) -> JobSpec:
    job = small_job(folder, samples=SAMPLES)
    return replace(job, shards=shards, replay_bytes=64 << 20, parity_shards=data_shards)


def lose(running: LocalJob, index: int, samples: int) -> ShardReport:
    """Kill a shard once parity has some of what it learnt, and wait until its successor has all of it."""
    running.reach(samples)
    running.wait_for(lambda: (running.shard(index).protected_samples or 0) > samples // 2, "parity has it")
    running.kill(running.shards[index])
    running.wait_exit(running.shards[index])
    running.replace_shard(index)
    running.wait_for(lambda: running.shard(index).resumed_samples is not None, "all pushes are there again")
    return running.shard(index)


@pytest.mark.parametrize(("shards", "data_shards"), [(2, 1), (3, 2)])
def test_a_killed_shard_is_rebuilt_bit_for_bit(tmp_path: Path, calm: SavedModel, shards: int, data_shards: int) -> None:
    """With one trainer the order of pushes is that of the steps. No cut comes before the last."""
    job = protected(tmp_path, data_shards, shards)
    with LocalJob(job, tmp_path, interval_s=600.0) as running:
        running.start(run_slowly)
        found = [lose(running, 1, SAMPLES // 4), lose(running, 0, SAMPLES // 2)]
        anchor = running.result()
    for report in found:
        assert report.rebuilt, "there is no save that it could come from"
        assert report.restored_samples is not None
        assert report.restored_samples > 0
        assert report.lost == ()
        assert report.row_updates is not None
        assert (report.row_updates.lost, report.row_updates.exact) == (0, True)
    assert read_anchor(open_store(job.snapshots.store, None, None), anchor).lost == ((),) * shards
    assert_same(saved_model(job, anchor, tmp_path / "model"), calm)


def test_a_shard_is_rebuilt_again_while_it_catches_up_and_the_store_is_away(tmp_path: Path, calm: SavedModel) -> None:
    job = protected(tmp_path, 1, 2)
    store, away = tmp_path / "store", tmp_path / "away"
    with LocalJob(job, tmp_path, interval_s=600.0) as running:
        running.start()
        running.reach(SAMPLES // 4)
        running.wait_for(lambda: (running.shard(1).protected_samples or 0) > SAMPLES // 8, "parity has it")
        store.rename(away)
        store.touch()  # no folder can be made in its place
        for _ in range(3):
            running.kill(running.shards[1])
            running.wait_exit(running.shards[1])
            running.replace_shard(1)
            running.wait_for(lambda: running.shard(1).rebuilt, "it has its rows")
        running.wait_for(lambda: running.shard(1).resumed_samples is not None, "all pushes are there again")
        report = running.shard(1)
        store.unlink()
        away.rename(store)
        anchor = running.result()
    assert report.lost == ()
    assert_same(saved_model(job, anchor, tmp_path / "model"), calm)


def test_of_two_trainers_a_shard_finds_the_floor_that_they_tell(tmp_path: Path) -> None:
    """What parity holds of all ranks is the floor, whichever rank was ahead when it was flushed."""
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


def test_a_shard_and_a_trainer_together_lose_a_flush_of_that_rank_at_most(tmp_path: Path) -> None:
    """What the lost trainer kept is gone, but not what parity has; and what is lost is told."""
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


def test_two_shards_of_one_stripe_come_back_from_the_trainer(tmp_path: Path, calm: SavedModel) -> None:
    """Parity has neither of them; the trainer kept what it had protected, because there was room."""
    job = protected(tmp_path, 1, 2)
    with LocalJob(job, tmp_path, interval_s=600.0) as running:
        running.start()
        running.reach(SAMPLES // 3)
        for index in (0, 1):
            running.kill(running.shards[index])
        for index in (0, 1):
            running.wait_exit(running.shards[index])
        for index in (0, 1):
            running.replace_shard(index)
        running.wait_for(lambda: running.shard(0).resumed_samples is not None, "all pushes are there again")
        report, anchor = running.shard(0), running.result()
    assert not report.rebuilt
    assert report.lost == ()
    assert_same(saved_model(job, anchor, tmp_path / "model"), calm)
