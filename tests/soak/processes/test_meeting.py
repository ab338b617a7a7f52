"""Trainers without lockstep that come to one step, where others take their place: every sample is trained once."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from cpr_contract.choices import DenseSync
from cpr_contract.reports import TrainerState
from cpr_contract.roster import AnchorRef
from cpr_contract.spec import JobSpec
from cpr_trainer.checkpoint.format.records import is_even
from cpr_trainer.store import open_store
from support.local_job import LocalJob, small_job
from support.resized_job import resized, stop
from support.row_count import Count
from support.warm_start import run_slowly

pytestmark = [pytest.mark.dist, pytest.mark.timeout(800)]
SAMPLES, BATCH = 60_000, 100


def shadow_job(folder: Path, dense_sync: DenseSync, trainers: int = 2) -> JobSpec:
    return replace(small_job(folder, samples=SAMPLES, trainers=trainers), dense_sync=dense_sync)


def ask_to_meet(running: LocalJob, *, meet: bool = True) -> None:
    running.meet = meet
    running.publish()


def meet(running: LocalJob) -> AnchorRef:
    """Wait until all stand at an anchor of theirs."""
    anchor = running.wait_for(lambda: running.trainer(running.leader).met, "all have met")
    assert isinstance(anchor, AnchorRef)
    assert is_even(open_store(running.job.snapshots.store, None, None), anchor)
    there = 2 * [(anchor.step,) * running.job.trainers]
    running.wait_for(lambda: [running.shard(i).applied for i in range(2)] == there, "the shards' pages show it")
    return anchor


def rows_changed(running: LocalJob) -> int:
    """The row updates that shard 1 has applied since its process began."""
    page = running.shards[1].page("/metrics")[1]
    (line,) = [line for line in page.splitlines() if line.startswith("cprjob_shard_rows_changed_total ")]
    return int(float(line.split()[1]))


def expected(job: JobSpec, after: AnchorRef | None, until: int) -> int:
    """The row updates of shard 1 in the steps after an anchor and up to `until`."""
    first = after.step if after else 0
    return sum(Count(job).by_rank(lambda step, _rank: first < step <= until))


def test_leader_far_ahead_waits_for_the_successor_of_a_trainer_that_died(tmp_path: Path) -> None:
    job = shadow_job(tmp_path, "ShadowMA")
    with resized(job, tmp_path / "run-1", 1, None) as running:
        running.start(run_slowly)
        running.reach(SAMPLES // 6)
        running.kill(running.trainers[1], signal.SIGSTOP)
        behind = running.shard(0).applied[1]
        running.wait_for(lambda: running.shard(0).applied[0] > behind + 50, "the leader is far ahead")
        ask_to_meet(running)
        running.wait_for(lambda: running.trainer().state is TrainerState.MEETING, "the leader waits")
        ahead = running.trainer().samples_started // BATCH
        running.kill(running.trainers[1])
        running.replace_trainers(1, leader=0)
        anchor = meet(running)
        assert behind + 50 < anchor.step <= ahead
        assert rows_changed(running) == expected(job, None, anchor.step)
        assert stop(running) == anchor


def test_shard_killed_on_the_way_takes_the_cut_with_what_it_lost(tmp_path: Path) -> None:
    job = shadow_job(tmp_path, "ShadowMA")
    with resized(job, tmp_path / "run-1", 1, None) as running:
        running.interval_s = 3600.0
        running.start()
        running.reach(SAMPLES // 6)
        running.kill(running.trainers[1], signal.SIGSTOP)
        ask_to_meet(running)
        running.wait_for(lambda: running.trainer().state is TrainerState.MEETING, "the leader waits")
        running.kill(running.shards[1])
        running.wait_exit(running.shards[1])
        running.replace_shard(1)
        running.kill(running.trainers[1], signal.SIGCONT)
        anchor = meet(running)
        lost = running.shard(1).lost
        assert stop(running) == anchor
    assert lost[0][0] == 0, "nothing was saved before"
    assert SAMPLES // 6 - 3 * BATCH <= lost[0][1] <= lost[-1][1] <= anchor.samples
    with resized(replace(job, trainers=3), tmp_path / "run-2", 2, anchor) as running:
        running.start()
        assert running.result().samples == SAMPLES
