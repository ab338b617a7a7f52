"""Members killed without replay: every lost sample and row update is reported.

The row updates are counted from the data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cpr_contract.choices import DenseSync
from cpr_contract.codec import from_json
from cpr_contract.manifests import RowUpdates, ShardManifest
from cpr_contract.reports import TrainerState
from cpr_contract.roster import Allowance, AnchorRef
from cpr_contract.spec import JobSpec
from cpr_trainer.checkpoint.format.records import read_anchor
from cpr_trainer.store import open_store
from processes.faults import NEVER_S, OFTEN_S, caught_up, reach, replace_by_file
from processes.jobs import BATCH, JOBS, SAMPLES, STEPS
from support.local_job import LocalJob
from support.row_count import Count
from support.warm_start import run_held

pytestmark = pytest.mark.dist


def of_two(folder: Path) -> JobSpec:
    return replace(JOBS["plain"](folder), trainers=2)


def row_updates_of(job: JobSpec, anchor: AnchorRef) -> RowUpdates:
    """Return the row updates of the save of shard 1 in an anchor."""
    store = open_store(job.snapshots.store, None, None)
    return from_json(ShardManifest, store.get(read_anchor(store, anchor).shards[1].key)).row_updates


def train_unsaved(running: LocalJob, step: int) -> None:
    """Train up to a step from an anchor on, without another save."""
    if running.interval_s == OFTEN_S:
        running.wait_for(lambda: running.trainer().anchors, "there is an anchor")
        running.interval_s = NEVER_S
        running.publish()
        roster = running.counters.roster
        running.wait_for(lambda: running.trainer().counters.roster == roster, "the leader plans no more cuts")
    running.hold_at(step)
    running.reach(step * BATCH)


def replace_shard(running: LocalJob) -> None:
    running.kill(running.shards[1])
    running.wait_exit(running.shards[1])
    running.replace_shard(1)


def shard_twice(running: LocalJob) -> None:
    """The shard is killed again before its first save: the second loss includes the first one."""
    replace_shard(running)
    running.hold_at(120)
    caught_up(running, 1)
    running.reach(120 * BATCH)
    replace_shard(running)


def shard_and_trainer(running: LocalJob) -> None:
    """No process has counted the earlier pushes of that trainer; its successor counts them from the data."""
    running.kill(running.trainers[1])
    replace_shard(running)
    running.replace_trainers(1, leader=0)


def shard_and_all_trainers(running: LocalJob) -> None:
    for member in running.trainers:
        running.kill(member)
    replace_shard(running)
    running.replace_trainers(0, 1, leader=0)


@pytest.mark.parametrize("lose", [shard_twice, shard_and_trainer, shard_and_all_trainers])
def test_killed_shard_reports_exactly_the_row_updates_it_lost(lose: Callable[[LocalJob], None], tmp_path: Path) -> None:
    job = of_two(tmp_path)
    with LocalJob(job, tmp_path, OFTEN_S) as running:
        running.hold_at(40)
        running.start(run_held)
        running.reach(40 * BATCH)
        train_unsaved(running, 80)
        lose(running)
        running.hold_at(STEPS)
        report, anchor = caught_up(running, 1), running.result()
    count = Count(job)
    assert report.row_updates is not None
    assert report.row_updates.lost == count.lost(report) > 0
    assert row_updates_of(job, anchor) == RowUpdates(count.all(), report.row_updates.lost, exact=True)


def test_shard_lost_with_a_trainer_loses_only_that_trainers_pushes(tmp_path: Path) -> None:
    """The other trainer sends its pushes again. Up to this many steps are reported slice by slice."""
    job = replace(of_two(tmp_path), replay_bytes=64 << 20)
    with LocalJob(job, tmp_path, NEVER_S) as running:
        running.hold_at(10)
        running.start(run_held)
        running.reach(10 * BATCH)
        running.kill(running.trainers[1])
        running.kill(running.shards[0])
        for member in (running.trainers[1], running.shards[0]):
            running.wait_exit(member)
        running.replace_shard(0)
        running.replace_trainers(1, leader=0)
        running.hold_at(STEPS)
        report, anchor = caught_up(running, 0), running.result()
        lost = read_anchor(open_store(job.snapshots.store, None, None), anchor).lost
    steps = len(report.lost)
    assert steps >= 10 - 3, "the successor computes the last three again"
    assert report.lost == tuple((100 * step + 50, 100 * step + 100) for step in range(steps)), "the slices of rank 1"
    assert lost == (report.lost, ())
    assert report.row_updates is not None
    assert report.row_updates.lost > 0


def test_single_trainer_resumes_from_a_dense_save_and_reports_its_loss(tmp_path: Path) -> None:
    """There is no anchor yet, and the store is unavailable when the trainer is killed."""
    job = JOBS["plain"](tmp_path)
    job = replace(job, snapshots=replace(job.snapshots, dense_interval_s=OFTEN_S))
    store, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
    with LocalJob(job, tmp_path, NEVER_S) as running:
        running.hold_at(60)
        running.start(run_held)
        running.wait_for(lambda: (save := running.trainer().dense_save) and save.samples > 0, "a dense state is saved")
        running.reach(60 * BATCH)
        replace_by_file(store, elsewhere)
        running.hold_at(120)
        running.reach(120 * BATCH)
        assert running.trainer().anchors == ()
        running.kill(running.trainers[0])
        running.wait_exit(running.trainers[0])
        store.unlink()
        elsewhere.rename(store)
        running.replace_trainers(0, leader=0)
        ((saved, resumes),) = running.wait_for(lambda: running.trainer().lost, "it reports the lost range")
        assert 0 < saved <= 60 * BATCH < resumes <= 120 * BATCH
        running.hold_at(STEPS)
        assert running.result().samples == SAMPLES


@pytest.mark.parametrize(
    ("dense_sync", "more", "state"),
    [
        ("AllReduce", 10 * BATCH + BATCH // 2, TrainerState.PAUSED),
        ("AllReduce", SAMPLES, TrainerState.FINISHING),
        ("ShadowMA", SAMPLES, TrainerState.FINISHING),
    ],
    ids=["up to the allowance", "up to the end", "up to the end without lockstep"],
)
def test_training_without_a_shard_counts_the_missing_updates(
    tmp_path: Path, dense_sync: DenseSync, more: int, state: TrainerState
) -> None:
    """The trainers then wait for the shard, and repeat the last steps, so that it reaches the last cut."""
    job = replace(of_two(tmp_path), dense_sync=dense_sync)
    with LocalJob(job, tmp_path, OFTEN_S) as running:
        running.hold_at(80)
        running.start(run_held)
        reach(running, 80)
        running.wait_for(lambda: running.trainer().anchors, "there is an anchor")
        running.kill(running.shards[1])
        running.wait_exit(running.shards[1])
        running.hold_at(STEPS)
        running.wait_for(lambda: "shard/1" in running.trainer().waiting_for, "the leader waits for the shard")
        until = min(running.trainer().samples_started + more, SAMPLES)
        running.allowances = (Allowance(1, until),)
        running.may_restore = False
        running.replace_shard(1)
        running.wait_for(
            lambda: (report := running.trainer()).state is state and report.samples == until // BATCH * BATCH,
            "the allowance is used up",
        )
        assert running.trainer().degraded_samples > 0
        assert running.trainer().result is None
        running.may_restore = True
        running.publish()
        report, anchor = caught_up(running, 1), running.result()
    manifest = read_anchor(open_store(job.snapshots.store, None, None), anchor)
    assert manifest.lost == ((), report.lost)
    assert report.lost[-1][1] <= until
    count, reported = Count(job), row_updates_of(job, anchor)
    if job.lockstep:
        assert reported == RowUpdates(count.all(), count.lost(report), exact=True)
    else:  # lost updates of some ranks may be reported in whole batches
        assert (reported.pushed, reported.exact) == (count.all(), True)
        assert 0 < reported.lost <= count.lost(report)
