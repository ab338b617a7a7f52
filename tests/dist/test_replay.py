"""Shards of real processes, killed while trainers keep what no save holds: nothing is lost."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from cpr_contract.codec import from_json
from cpr_contract.env import KEEPER, ROLE_SHARD, ROLE_TRAINER
from cpr_contract.reports import ExitCode, SaveRef
from cpr_contract.roster import AnchorRef
from cpr_contract.spec import JobSpec
from cpr_trainer.checkpoint.format.records import read_anchor
from cpr_trainer.store import open_store
from support.local_job import LocalJob, small_job
from support.model import SavedModel, assert_same, saved_model
from support.warm_start import run_slowly

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]
SAMPLES = 60_000


def replaying(folder: Path) -> JobSpec:
    return replace(small_job(folder, samples=SAMPLES), replay_bytes=64 << 20)


def kill_at(running: LocalJob, samples: int, *shards: int) -> None:
    """Kill these shards together, and start their successors once their end is seen."""
    running.reach(samples)
    for index in shards:
        running.kill(running.shards[index])
    for index in shards:
        running.wait_exit(running.shards[index])
    for index in shards:
        running.replace_shard(index)
    for index in shards:
        running.wait_for(lambda i=index: running.shard(i).resumed_samples is not None, "all pushes are there again")


def test_a_killed_shard_is_as_if_it_had_never_died(tmp_path: Path, calm: SavedModel) -> None:
    """Bit for bit: with one trainer the order of pushes is that of the steps."""
    job = replaying(tmp_path)
    with LocalJob(job, tmp_path) as running:
        running.start()
        running.reach(SAMPLES // 4)
        running.train_unsaved()
        running.interval_s = 0.5
        kill_at(running, 0, 1)
        first = running.shard(1)
        kill_at(running, SAMPLES // 2, 0, 1)
        anchor = running.result()
    assert first.lost == ()
    assert first.restored_samples is not None
    assert first.replayed_samples > 0
    assert first.resumed_samples == first.restored_samples
    assert first.row_updates is not None
    assert (first.row_updates.lost, first.row_updates.exact) == (0, True)
    assert read_anchor(open_store(job.snapshots.store, None, None), anchor).lost == ((), ())
    assert_same(saved_model(job, anchor, tmp_path / "model"), calm)


def test_a_shard_gets_more_than_the_memory_of_a_trainer_takes(tmp_path: Path, calm: SavedModel) -> None:
    """Most of it from the trainer's disk, where the trainer's next process finds it, too."""
    job = replace(replaying(tmp_path), replay_bytes=256 << 10, spill_bytes=256 << 20)
    with LocalJob(job, tmp_path, interval_s=600.0, environ={KEEPER: "1"}) as running:
        running.start(run_slowly)
        running.reach(SAMPLES // 4)
        running.kill_server(running.trainers[0])
        running.wait_for(lambda: running.trainer().lives == 2, "the next process begins")
        # It cuts at once. What comes after that is sent again.
        kill_at(running, running.trainer().samples + SAMPLES // 4, 1)
        report, spilled = running.shard(1), (running.trainers[0].folder / "pushes").stat()
        anchor = running.result()
    assert report.lost == ()
    assert report.replayed_samples * 4 * 36 > 4 * job.replay_bytes, "a row takes 36 bytes, and a sample has four"
    assert spilled.st_size == job.spill_bytes
    assert_same(saved_model(job, anchor, tmp_path / "model"), calm)


def test_a_shard_that_dies_while_it_catches_up(tmp_path: Path, calm: SavedModel) -> None:
    job = replaying(tmp_path)
    with LocalJob(job, tmp_path, interval_s=600.0) as running:
        running.start()
        running.reach(SAMPLES // 2)
        for _ in range(3):
            running.kill(running.shards[0])
            running.wait_exit(running.shards[0])
            running.replace_shard(0)
            running.wait_for(lambda: running.shard(0).replayed_samples > 0, "it is sent pushes again")
        running.wait_for(lambda: running.shard(0).resumed_samples is not None, "all pushes are there again")
        report, anchor = running.shard(0), running.result()
    assert report.restored_samples == 0, "there was no save yet"
    assert report.replayed_samples >= SAMPLES // 2
    assert report.lost == ()
    assert_same(saved_model(job, anchor, tmp_path / "model"), calm)


def test_several_trainers_lose_nothing_and_a_lost_one_is_followed_by_a_cut(tmp_path: Path) -> None:
    """Who took over keeps nothing of before; once the cut at its beginning is saved, no shard needs that."""
    job = replace(small_job(tmp_path, samples=SAMPLES, trainers=2), replay_bytes=64 << 20)
    with LocalJob(job, tmp_path, interval_s=600.0) as running:
        running.start()
        kill_at(running, SAMPLES // 5, 1)
        first = running.shard(1)
        running.kill(running.trainers[1])
        running.wait_exit(running.trainers[1])
        stood_at = running.trainer().samples
        running.replace_trainers(1, leader=0)
        running.wait_for(
            lambda: len(saves := running.trainer(1).shard_saves) == 2 and min(saves) > stood_at,
            "a cut is saved at once",
        )
        heir = running.trainer(1)
        kill_at(running, running.trainer().samples, 0)
        second, anchor = running.shard(0), running.result()
    assert first.replayed_samples >= SAMPLES // 5
    assert all(forgotten <= saved for forgotten, saved in zip(heir.forgotten, heir.shard_saves, strict=True))
    for report in (first, second):
        assert (report.lost, report.replayed_in_order) == ((), True)
        assert report.replay_s is not None
        assert report.replay_s > 0
        assert report.row_updates is not None
        assert report.row_updates.lost == 0
    assert read_anchor(open_store(job.snapshots.store, None, None), anchor).lost == ((), ())


def of_two(folder: Path, samples: int = 20_000) -> JobSpec:
    return replace(small_job(folder, samples=samples, trainers=2), replay_bytes=64 << 20)


def assert_nothing_lost(running: LocalJob, anchor: AnchorRef) -> None:
    """By the word of the shards, and by the anchor."""
    assert read_anchor(open_store(running.job.snapshots.store, None, None), anchor).lost == ((), ())


def replace_together(running: LocalJob, *shards: int) -> None:
    for index in shards:
        running.kill(running.shards[index])
    for index in shards:
        running.wait_exit(running.shards[index])
    for index in shards:
        running.replace_shard(index)


def test_of_two_trainers_both_shards_die_together_and_again_while_they_catch_up(tmp_path: Path) -> None:
    with LocalJob(of_two(tmp_path), tmp_path, interval_s=600.0) as running:
        running.start(run_slowly)
        running.reach(6_000)
        replace_together(running, 0, 1)
        running.wait_for(lambda: running.shard(0).replayed_samples > 0, "a shard is sent pushes again")
        replace_together(running, 0, 1)
        for index in (0, 1):
            running.wait_for(lambda i=index: running.shard(i).resumed_samples is not None, "all pushes are there again")
        reports, anchor = [running.shard(index) for index in (0, 1)], running.result()
        assert_nothing_lost(running, anchor)
    for report in reports:
        assert (report.restored_samples, report.lost) == (0, ())
        assert report.replayed_samples >= 6_000
        assert report.row_updates is not None
        assert (report.row_updates.lost, report.row_updates.exact) == (0, True)


def test_of_two_trainers_a_drained_shard_and_its_successor_lose_nothing(tmp_path: Path) -> None:
    with LocalJob(of_two(tmp_path), tmp_path, interval_s=600.0) as running:
        running.start(run_slowly)
        running.reach(5_000)
        running.kill(running.shards[1], signal.SIGTERM)
        assert running.wait_exit(running.shards[1]) == ExitCode.FLUSHED
        flushed = from_json(SaveRef, running.shards[1].last_word).samples
        running.replace_shard(1)
        running.wait_for(lambda: running.shard(1).resumed_samples is not None, "all ranks push to it")
        running.reach(running.trainer().samples + 1000)
        replace_together(running, 1)
        running.wait_for(lambda: running.shard(1).resumed_samples is not None, "all pushes are there again")
        report, anchor = running.shard(1), running.result()
        assert_nothing_lost(running, anchor)
    assert report.restored_samples == flushed > 0, "it goes on from the flush"
    assert report.replayed_samples >= 1000
    assert report.lost == ()
    assert report.row_updates is not None
    assert report.row_updates.lost == 0


def test_a_shard_that_dies_with_a_trainer_loses_what_that_one_kept_and_no_more(tmp_path: Path) -> None:
    """Its memory is gone, and no save holds it yet. So few steps are told slice by slice."""
    job = of_two(tmp_path, samples=6_300)
    with LocalJob(job, tmp_path, interval_s=600.0) as running:
        running.start(run_slowly)
        running.reach(1_000)
        running.kill(running.trainers[1])
        running.kill(running.shards[0])
        for member in (running.trainers[1], running.shards[0]):
            running.wait_exit(member)
        running.replace_shard(0)
        running.replace_trainers(1, leader=0)
        running.wait_for(lambda: running.shard(0).resumed_samples is not None, "all ranks push to it")
        report, other, anchor = running.shard(0), running.shard(1), running.result()
        lost = read_anchor(open_store(job.snapshots.store, None, None), anchor).lost
    steps = len(report.lost)
    assert steps >= 10 - 3, "the heir computes the last three again"
    assert report.lost == tuple((100 * step + 50, 100 * step + 100) for step in range(steps)), "the slices of rank 1"
    assert lost == (report.lost, ())
    assert report.row_updates is not None
    assert report.row_updates.lost > 0
    assert other.lost == ()


def test_a_job_that_is_suspended_while_a_shard_is_away_ends_with_all_that_it_learnt(tmp_path: Path) -> None:
    """Nobody but the trainers has it, so they wait for the shard. It comes back late."""
    with LocalJob(of_two(tmp_path), tmp_path, interval_s=600.0) as running:
        running.start(run_slowly)
        running.reach(5_000)
        running.kill(running.shards[1])
        running.wait_exit(running.shards[1])
        running.wait_for(lambda: running.trainer().waiting_for, "the shard is missed")
        running.stopped |= {ROLE_TRAINER}
        running.publish()
        time.sleep(8.0)
        running.replace_shard(1)
        assert [running.wait_exit(member) for member in running.trainers] == [ExitCode.FLUSHED] * 2
        reports = [running.shard(index) for index in (0, 1)]
        running.stopped |= {ROLE_SHARD}
        running.publish()
        assert [running.wait_exit(member) for member in running.shards] == [ExitCode.FLUSHED] * 2
    assert [report.lost for report in reports] == [(), ()]
    assert reports[0].applied == reports[1].applied
    assert reports[1].replayed_samples >= 5_000
