"""Trainers that are averaged in the background: one is killed, one stands still, and the others go on."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from cpr_contract.choices import DenseSync
from cpr_contract.reports import TrainerState
from cpr_contract.spec import JobSpec
from support.local_job import LocalJob, small_job
from support.model import SavedModel, auc_of_half, saved_model
from support.warm_start import run_slowly

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]
SAMPLES = 60_000


def shadow_job(folder: Path, dense_sync: DenseSync) -> JobSpec:
    return replace(small_job(folder, samples=SAMPLES, trainers=2), dense_sync=dense_sync)


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


def test_cut_waits_for_the_slowest_trainer_and_no_trainer_for_the_cut(tmp_path: Path) -> None:
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


def test_lost_shard_comes_back_alone(tmp_path: Path) -> None:
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
