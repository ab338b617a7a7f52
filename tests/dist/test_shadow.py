"""Trainers that are averaged in the background: one is killed, one stands still, and the others go on."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from cpr_contract.choices import DenseSync
from cpr_contract.reports import TrainerState
from cpr_contract.spec import JobSpec
from cpr_trainer.trainer.scores import MERGE_STEPS
from cpr_trainer.trainer.shadow.desk import GAP_STEPS
from support.local_job import LocalJob, small_job
from support.model import SavedModel, auc_of_half, saved_model
from support.warm_start import run_slowly

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]
SAMPLES = 60_000


def shadow_job(folder: Path, dense_sync: DenseSync) -> JobSpec:
    return replace(small_job(folder, samples=SAMPLES, trainers=2), dense_sync=dense_sync)


def averages(running: LocalJob, index: int) -> None:
    """Wait until a trainer has blended towards what came back."""
    running.wait_for(lambda: running.trainer(index).sync_gap, "copies are averaged")


def finish(running: LocalJob, folder: Path) -> SavedModel:
    """Wait for the end; check that every sample was trained once on every shard, and nothing was spoilt by it."""
    last = running.job.data.samples // running.job.data.batch_size  # type: ignore[operator]
    running.wait_for(lambda: all(running.shard(i).applied == (last, last) for i in range(2)), "all steps are applied")
    lost = [running.shard(index).lost for index in range(2)]
    anchor = running.result()
    assert lost == [(), ()]
    assert anchor.samples == running.job.data.samples
    model = saved_model(running.job, anchor, folder / "model")
    assert model.auc is not None
    assert model.auc > auc_of_half(running.job)
    return model


def started(running: LocalJob, index: int) -> int:
    return running.trainer(index).samples_started


@pytest.mark.parametrize(("victim", "dense_sync"), [(0, "ShadowMA"), (1, "ShadowEASGD")], ids=["leader", "follower"])
def test_a_killed_trainer_stops_nobody_and_costs_nothing(tmp_path: Path, victim: int, dense_sync: DenseSync) -> None:
    job, other = shadow_job(tmp_path, dense_sync), 1 - victim
    with LocalJob(job, tmp_path) as running:
        running.start()
        averages(running, 1)
        running.reach(SAMPLES // 4)
        running.kill(running.trainers[victim])
        running.wait_exit(running.trainers[victim])
        alone = started(running, other)
        running.wait_for(lambda: started(running, other) >= alone + SAMPLES // 6, "the other trains on alone")
        running.replace_trainers(victim, leader=other if victim == 0 else 0)
        model = finish(running, tmp_path)
    # A dead trainer's scores since the last merge are gone, and so is what a dead leader had not passed on; what is
    # computed again because it was not averaged is scored again.
    least, most = 4 * MERGE_STEPS * job.data.batch_size, GAP_STEPS * job.data.batch_size
    assert SAMPLES * 4 // 5 - least <= model.scored <= SAMPLES * 4 // 5 + most


def test_a_leader_that_stands_still_stops_nobody(tmp_path: Path) -> None:
    job = shadow_job(tmp_path, "ShadowBMUF")
    with LocalJob(job, tmp_path) as running:
        running.start()
        averages(running, 1)
        running.reach(SAMPLES // 4)
        running.kill(running.trainers[0], signal.SIGSTOP)
        running.wait_for(lambda: running.trainer(1).state is TrainerState.FINISHING, "the other is done")
        running.kill(running.trainers[0], signal.SIGCONT)
        model = finish(running, tmp_path)
    assert model.scored == SAMPLES * 4 // 5, "each sample that counts is scored once"


def test_a_cut_waits_for_the_slow_one_and_no_worker_for_the_cut(tmp_path: Path) -> None:
    job = shadow_job(tmp_path, "ShadowEASGD")
    with LocalJob(job, tmp_path) as running:
        running.start()
        running.reach(SAMPLES // 4)
        running.kill(running.trainers[1], signal.SIGSTOP)
        running.wait_for(lambda: running.trainer().state is TrainerState.FINISHING, "the leader is done")
        behind = min(running.shard(0).applied)
        running.wait_for(lambda: running.trainer().waiting_for == (), "connections of a stopped process stand")
        assert all(anchor.step <= behind for anchor in running.trainer().anchors)
        assert running.shard(0).applied[0] > behind
        running.kill(running.trainers[1], signal.SIGCONT)
        model = finish(running, tmp_path)
    assert model.scored == SAMPLES * 4 // 5, "each sample that counts is scored once"


def test_a_lost_shard_comes_back_alone(tmp_path: Path) -> None:
    job = shadow_job(tmp_path, "ShadowMA")
    with LocalJob(job, tmp_path) as running:
        running.start(run_slowly)
        running.wait_for(lambda: running.trainer().anchors, "a cut is committed")
        saved = running.shard(0).newest_save
        running.kill(running.shards[0])
        running.wait_exit(running.shards[0])
        bound = max(started(running, index) for index in range(2))
        running.replace_shard(0)
        running.wait_for(lambda: running.shard(0).resumed_samples, "it tells what is lost")
        lost, other = running.shard(0).lost, running.shard(1).lost
        assert running.result().samples == SAMPLES
    assert saved is not None
    assert other == ()
    assert all(saved.samples <= start and end <= bound for start, end in lost), (lost, saved, bound)


def test_after_a_rollback_every_rank_goes_on_where_it_was_saved(tmp_path: Path) -> None:
    job = shadow_job(tmp_path, "ShadowBMUF")
    with LocalJob(job, tmp_path) as running:
        running.start(run_slowly)
        anchor = running.wait_for(lambda: running.trainer().anchors, "a cut is committed")[-1]
        running.wait_for(lambda: started(running, 1) > anchor.samples + SAMPLES // 10, "some is to be undone")
        running.roll_back(anchor)
        finish(running, tmp_path)


def test_all_trainers_and_a_shard_killed_lose_nothing(tmp_path: Path) -> None:
    """Ranks go back to what the shard has, which was never saved; the other shard drops what it has already."""
    job = shadow_job(tmp_path, "ShadowMA")
    job = replace(job, snapshots=replace(job.snapshots, dense_interval_s=0.2))
    with LocalJob(job, tmp_path, interval_s=1e6) as running:
        running.start()
        running.wait_for(
            lambda: (save := running.trainer().dense_save) and save.samples > SAMPLES // 4, "a dense state is saved"
        )
        for member in (*running.trainers, running.shards[0]):
            running.kill(member)
            running.wait_exit(member)
        running.replace_shard(0)
        running.replace_trainers(0, 1, leader=0)
        finish(running, tmp_path)
