"""Trainers with keepers: real processes that are killed, and followed by others that go on with the same bits."""

from __future__ import annotations

import random
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from cpr_contract.env import KEEPER
from cpr_contract.reports import ExitCode
from cpr_contract.roster import AnchorRef
from cpr_contract.spec import JobSpec
from cpr_trainer.checkpoint.format.records import read_anchor
from cpr_trainer.store import open_store
from cpr_trainer.trainer.scores import MERGE_STEPS
from support.local_job import LocalJob, small_job, small_steps
from support.model import SavedModel, assert_same, saved_model, train_alone
from support.shard_job import hasty
from support.warm_start import run_slowly, run_with_a_thread

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]
SAMPLES = 60_000
KEPT = {KEEPER: "1"}


def next_life(running: LocalJob, rank: int, number: signal.Signals = signal.SIGKILL) -> None:
    """End the process that trains, and wait until the next one trains."""
    before = running.trainer(rank).lives
    running.kill_server(running.trainers[rank], number)
    running.wait_for(lambda: running.trainer(rank).lives == before + 1, "the next life begins")


def lost(job: JobSpec, anchor: AnchorRef) -> tuple[tuple[tuple[int, int], ...], ...]:
    return read_anchor(open_store(job.snapshots.store, None, None), anchor).lost


@pytest.mark.parametrize("replay_bytes", [0, 64 << 20], ids=["acknowledged", "protected"])
def test_the_only_trainer_killed_at_any_moment_is_as_if_it_had_never_died(
    tmp_path: Path, calm: SavedModel, replay_bytes: int
) -> None:
    """Bit for bit, scores included, from the last complete step: whatever a shard was sent is sent again."""
    rng = random.Random(time.time_ns())
    job = replace(small_job(tmp_path, samples=SAMPLES), replay_bytes=replay_bytes)
    with LocalJob(job, tmp_path, environ=KEPT) as running:
        running.start(run_slowly)
        for portion in (0.2, 0.7):  # a third crash within a minute would be the last
            running.reach(int(portion * SAMPLES))
            time.sleep(rng.random() / 10)
            next_life(running, 0)
        running.wait_for(lambda: running.trainer().samples > 0.7 * SAMPLES, "it goes on")
        assert running.trainer().lost == ()
        anchor = running.result()
    assert running.trainers[0].incarnation == 1
    assert "begins as process" in running.trainers[0].log
    assert "loads its code itself" not in running.trainers[0].log
    assert lost(job, anchor) == ((), ())
    assert_same(saved_model(job, anchor, tmp_path / "model"), calm)


def test_what_a_trainer_kept_for_a_shard_outlives_it(tmp_path: Path, calm: SavedModel) -> None:
    """The log of pushes is the next process', and brings a shard up to date that died with all its rows."""
    job = replace(small_job(tmp_path, samples=SAMPLES), replay_bytes=64 << 20)
    with LocalJob(job, tmp_path, interval_s=5.0, environ=KEPT) as running:
        running.start()
        running.reach(SAMPLES // 3)
        running.kill(running.shards[1])
        running.wait_exit(running.shards[1])
        running.kill_server(running.trainers[0])
        running.wait_for(lambda: running.trainer().lives == 2, "the next life begins")
        running.replace_shard(1)
        running.wait_for(lambda: running.shard(1).resumed_samples is not None, "all pushes are there again")
        assert running.shard(1).lost == ()
        assert running.shard(1).replayed_samples > 0
        anchor = running.result()
    assert_same(saved_model(job, anchor, tmp_path / "model"), calm)


@pytest.mark.parametrize("victims", [(0,), (1,), (0, 1)], ids=["leader", "follower", "both"])
def test_two_trainers_lose_nothing(tmp_path: Path, victims: tuple[int, ...]) -> None:
    """Neither rows nor samples. In which order two trainers' pushes come is any, so bits cannot be compared."""
    job = small_steps(small_job(tmp_path, samples=SAMPLES, trainers=2))
    with LocalJob(job, tmp_path, environ=KEPT) as running:
        running.start()
        running.reach(SAMPLES // 3)
        for victim in victims:
            running.kill_server(running.trainers[victim])
        for victim in victims:
            running.wait_for(lambda rank=victim: running.trainer(rank).lives == 2, "the next life begins")
        anchor = running.result()
        reports = [running.shard(index) for index in range(2)]
    assert [report.lost for report in reports] == [(), ()]
    assert [report.row_updates.lost for report in reports if report.row_updates] == [0, 0]
    assert lost(job, anchor) == ((), ())
    model, expected = saved_model(job, anchor, tmp_path / "model"), train_alone(job)
    assert model.auc is not None
    assert abs(model.auc - expected.auc) < 0.002
    # One that died between a sum and its end gets the state from the other, without what it had scored itself.
    unmerged = len(victims) * MERGE_STEPS * job.data.batch_size // 2
    assert SAMPLES * 4 // 5 - unmerged <= model.scored <= SAMPLES * 4 // 5


def test_a_hung_trainer_is_followed_by_one_that_goes_on(tmp_path: Path, calm: SavedModel) -> None:
    job = hasty(small_job(tmp_path, samples=SAMPLES))
    with LocalJob(job, tmp_path, environ=KEPT) as running:
        running.start()
        running.reach(SAMPLES // 3)
        running.kill_server(running.trainers[0], signal.SIGSTOP)
        running.wait_for(lambda: "hangs" in running.trainers[0].log, "its keeper finds it")
        anchor = running.result()
    assert_same(saved_model(job, anchor, tmp_path / "model"), calm)


def test_a_trainer_that_is_told_to_stop_ends_its_pod(tmp_path: Path) -> None:
    job = small_job(tmp_path, samples=SAMPLES)
    with LocalJob(job, tmp_path, environ=KEPT) as running:
        running.start()
        running.reach(SAMPLES // 3)
        running.kill(running.trainers[0], signal.SIGTERM)
        assert running.wait_exit(running.trainers[0]) == ExitCode.FLUSHED


def test_a_keeper_with_threads_spawns(tmp_path: Path, calm: SavedModel) -> None:
    """The process loads its code itself, and finds what is kept all the same."""
    job = small_job(tmp_path, samples=SAMPLES)
    with LocalJob(job, tmp_path, environ=KEPT) as running:
        running.start(run_with_a_thread)
        running.reach(SAMPLES // 3)
        next_life(running, 0)
        anchor = running.result()
    assert "loads its code itself" in running.trainers[0].log
    assert_same(saved_model(job, anchor, tmp_path / "model"), calm)
