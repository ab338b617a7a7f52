"""Trainers that are averaged in the background: one is killed, one stands still, and the others go on."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from cpr_contract.reports import TrainerState
from cpr_contract.spec import DenseSync, JobSpec
from cpr_trainer.trainer.scores import MERGE_STEPS
from cpr_trainer.trainer.shadow.desk import GAP_STEPS
from support.local_job import LocalJob, small_job
from support.model import SavedModel, saved_model, train_alone

pytestmark = [pytest.mark.dist, pytest.mark.timeout(300)]
SAMPLES = 60_000
NEAR = 0.01
SHADOWS: tuple[DenseSync, ...] = ("ShadowEASGD", "ShadowMA", "ShadowBMUF")


def shadow_job(folder: Path, dense_sync: DenseSync = "ShadowMA", samples: int = SAMPLES) -> JobSpec:
    return replace(small_job(folder, samples=samples, trainers=2), dense_sync=dense_sync)


@pytest.mark.parametrize("dense_sync", SHADOWS)
def test_every_sample_is_trained_once_and_the_model_is_as_good(tmp_path: Path, dense_sync: DenseSync) -> None:
    job = shadow_job(tmp_path, dense_sync)
    with LocalJob(job, tmp_path) as running:
        running.start()
        gap = running.wait_for(lambda: running.trainer(1).sync_gap, "copies are averaged")
        anchor = running.result()
        shards = [running.shard(index) for index in range(2)]
    assert gap >= 1
    assert [shard.applied for shard in shards] == [(600, 600)] * 2
    assert [shard.lost for shard in shards] == [(), ()]
    assert anchor.samples == SAMPLES
    model, expected = saved_model(job, anchor, tmp_path / "model"), train_alone(job)
    assert model.scored == SAMPLES * 4 // 5, "each sample that counts is scored once"
    assert model.auc is not None
    assert abs(model.auc - expected.auc) < NEAR


def finish(running: LocalJob, folder: Path) -> SavedModel:
    """Wait for the end; check that every sample was trained once on every shard."""
    last = running.job.data.samples // running.job.data.batch_size  # type: ignore[operator]
    running.wait_for(lambda: all(running.shard(i).applied == (last, last) for i in range(2)), "all steps are applied")
    lost = [running.shard(index).lost for index in range(2)]
    anchor = running.result()
    assert lost == [(), ()]
    assert anchor.samples == running.job.data.samples
    return saved_model(running.job, anchor, folder / "model")


def started(running: LocalJob, index: int) -> int:
    return running.trainer(index).samples_started


@pytest.mark.parametrize("victim", [0, 1], ids=["leader", "follower"])
def test_a_killed_trainer_stops_nobody_and_costs_nothing(tmp_path: Path, victim: int) -> None:
    job, other = shadow_job(tmp_path), 1 - victim
    with LocalJob(job, tmp_path) as running:
        running.start()
        running.reach(SAMPLES // 4)
        running.kill(running.trainers[victim])
        running.wait_exit(running.trainers[victim])
        alone = started(running, other)
        running.wait_for(lambda: started(running, other) >= alone + SAMPLES // 6, "the other trains on alone")
        running.replace_trainers(victim, leader=other if victim == 0 else 0)
        model = finish(running, tmp_path)
    expected = train_alone(job)
    assert model.auc is not None
    assert abs(model.auc - expected.auc) < NEAR
    # A dead trainer's scores since the last merge are gone, and so is what a dead leader had not passed on; what is
    # computed again because it was not averaged is scored again.
    least, most = 4 * MERGE_STEPS * job.data.batch_size, GAP_STEPS * job.data.batch_size
    assert SAMPLES * 4 // 5 - least <= model.scored <= SAMPLES * 4 // 5 + most


@pytest.mark.parametrize("slow", [0, 1], ids=["leader", "follower"])
def test_the_others_train_to_their_end_while_one_stands_still(tmp_path: Path, slow: int) -> None:
    job = shadow_job(tmp_path, "ShadowBMUF")
    with LocalJob(job, tmp_path) as running:
        running.start()
        running.reach(SAMPLES // 4)
        running.kill(running.trainers[slow], signal.SIGSTOP)
        running.wait_for(
            lambda: running.trainer(1 - slow).state is TrainerState.FINISHING, "the other has trained all its steps"
        )
        running.kill(running.trainers[slow], signal.SIGCONT)
        model = finish(running, tmp_path)
    assert model.auc is not None
    assert abs(model.auc - train_alone(job).auc) < NEAR
    assert model.scored == SAMPLES * 4 // 5


def test_a_cut_waits_for_the_slow_one_and_no_worker_for_the_cut(tmp_path: Path) -> None:
    job = shadow_job(tmp_path)
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
        finish(running, tmp_path)


def test_a_lost_shard_comes_back_alone(tmp_path: Path) -> None:
    job = shadow_job(tmp_path)
    with LocalJob(job, tmp_path) as running:
        running.start()
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
    job = shadow_job(tmp_path)
    with LocalJob(job, tmp_path) as running:
        running.start()
        anchor = running.wait_for(lambda: running.trainer().anchors, "a cut is committed")[-1]
        running.wait_for(lambda: started(running, 1) > anchor.samples + SAMPLES // 10, "some is to be undone")
        running.roll_back(anchor)
        model = finish(running, tmp_path)
    assert model.auc is not None
    assert abs(model.auc - train_alone(job).auc) < NEAR


def test_all_trainers_killed_lose_nothing(tmp_path: Path) -> None:
    job = shadow_job(tmp_path)
    with LocalJob(job, tmp_path) as running:
        running.start()
        running.wait_for(lambda: running.trainer().anchors, "a cut is committed")
        for trainer in running.trainers:
            running.kill(trainer)
            running.wait_exit(trainer)
        running.replace_trainers(0, 1, leader=0)
        model = finish(running, tmp_path)
    assert model.auc is not None
    assert abs(model.auc - train_alone(job).auc) < NEAR
