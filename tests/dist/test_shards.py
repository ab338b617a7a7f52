"""Shards of real processes, killed, told to stop, hung or replaced: what others notice, and what is lost."""

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cpr_contract.codec import from_json
from cpr_contract.env import ROLE_SHARD
from cpr_contract.reports import ExitCode, SaveRef, ShardState, TrainerState
from cpr_trainer.checkpoint.format.records import read_anchor
from cpr_trainer.store import open_store
from support.local_job import LocalJob, Member, small_job
from support.model import SavedModel, assert_same, saved_model
from support.shard_job import hasty

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]
SAMPLES = 60_000


def pids(running: LocalJob) -> dict[str, int]:
    members = (*running.shards, *running.trainers)
    return {member.name: member.process.pid for member in members if member.process is not None}


@pytest.mark.parametrize("prefetch", [1, 3])
def test_a_killed_shard_comes_back_alone_and_tells_what_it_lost(tmp_path: Path, prefetch: int) -> None:
    job = replace(small_job(tmp_path, samples=SAMPLES), prefetch=prefetch)
    with LocalJob(job, tmp_path) as running:
        running.start()
        running.reach(SAMPLES // 3)
        running.train_unsaved()
        before = pids(running)
        running.kill(running.shards[1])
        running.wait_for(lambda: "shard/1" in running.trainer().waiting_for, "the leader waits for the shard")
        paused = running.trainer()
        assert paused.state is TrainerState.PAUSED
        running.replace_shard(1)
        report = running.wait_for(
            lambda: (r := running.shard(1)).resumed_samples is not None and r, "all ranks push again"
        )
        anchor = running.result()
        after = pids(running)
    assert {name for name in after if after[name] != before[name]} == {"shard/1"}
    assert report.lost == ((report.restored_samples, report.resumed_samples),)
    assert report.resumed_samples <= paused.samples_started, "the bound that the operator reserves by"
    manifest = read_anchor(open_store(job.snapshots.store, None, None), anchor)
    assert manifest.lost == ((), report.lost)


def stop_by_signal(running: LocalJob) -> None:
    running.kill(running.shards[0], signal.SIGTERM)


def stop_by_roster(running: LocalJob) -> None:
    running.stopped = frozenset({ROLE_SHARD})
    running.publish()
    running.stopped = frozenset()


@pytest.mark.parametrize("stop", [stop_by_signal, stop_by_roster])
def test_a_shard_that_is_told_to_stop_loses_nothing(
    tmp_path: Path, stop: Callable[[LocalJob], None], calm: SavedModel
) -> None:
    job = small_job(tmp_path, samples=SAMPLES, shards=1)
    with LocalJob(job, tmp_path) as running:
        running.start()
        running.reach(SAMPLES // 3)
        flushed: Member = running.shards[0]
        stop(running)
        assert running.wait_exit(flushed) == ExitCode.FLUSHED
        save = from_json(SaveRef, flushed.last_word)
        running.may_restore = False
        running.replace_shard(0)
        running.wait_for(lambda: running.shard(0).state is ShardState.RESTORING, "the successor waits")
        assert running.shard(0).restored_samples is None
        running.may_restore = True
        running.publish()
        running.wait_for(lambda: running.shard(0).restored_samples == save.samples, "it restores that very save")
        anchor = running.result()
    assert_same(saved_model(job, anchor, tmp_path / "model"), calm)


def test_a_hung_shard_is_called_silent(tmp_path: Path) -> None:
    job = hasty(small_job(tmp_path, samples=SAMPLES, trainers=2))
    with LocalJob(job, tmp_path) as running:
        running.start()
        running.reach(SAMPLES // 4)
        running.kill(running.shards[1], signal.SIGSTOP)
        for index in range(2):
            running.wait_for(lambda i=index: running.trainer(i).silent == ("shard/1",), f"trainer/{index} misses it")
        assert running.trainer().samples < SAMPLES


def test_a_replaced_shard_steps_aside(tmp_path: Path) -> None:
    job = small_job(tmp_path, samples=SAMPLES)
    with LocalJob(job, tmp_path) as running:
        running.start()
        running.reach(SAMPLES // 4)
        old = running.shards[0]
        running.replace_shard(0)
        old.write_roster(running.fencing_roster(old))
        assert running.wait_exit(old) == ExitCode.SUPERSEDED
        assert running.result().samples == SAMPLES
