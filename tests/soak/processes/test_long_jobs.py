"""Longer jobs, in which several trainers learn as well as one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cpr_contract.codec import from_json
from cpr_contract.reports import ExitCode, Result, TrainerState
from cpr_contract.spec import EarlyStopSpec, EvaluationSpec
from cpr_trainer.data.files import files_of
from cpr_trainer.data.source import open_dataset
from cpr_trainer.evaluate import evaluate
from cpr_trainer.store import open_store
from support.local_job import LocalJob, small_job, small_steps
from support.model import saved_model, train_alone

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]


@pytest.mark.parametrize("trainers", [2, 3])
def test_several_trainers_learn_as_well_as_one(tmp_path: Path, trainers: int) -> None:
    """They begin before their leader has an address."""
    job = small_steps(small_job(tmp_path, samples=60_000, trainers=trainers, shards=3))
    with LocalJob(job, tmp_path) as running:
        running.addressed = False
        running.start()
        running.wait_for(lambda: running.trainer(1).state is TrainerState.JOINING, "the follower looks for its leader")
        running.addressed = True
        running.publish()
        anchor = running.result()
    model, expected = saved_model(job, anchor, tmp_path / "model"), train_alone(job)
    assert model.auc is not None
    assert abs(model.auc - expected.auc) < 0.002
    assert model.scored == 48_000, "every sample is scored once, but for the first fifth"


@pytest.mark.parametrize("victim", [0, 1], ids=["leader", "follower"])
def test_two_trainers_stop_early_together_though_one_is_replaced(tmp_path: Path, victim: int) -> None:
    stop, every = EarlyStopSpec("AUC", 2, 0.022), 1_600
    job = small_steps(replace(small_job(tmp_path, samples=16_000, trainers=2), replay_bytes=64 << 20))
    job = replace(job, data=replace(job.data, hold_out=0.1), evaluation=EvaluationSpec(every, 10**6, stop))
    with LocalJob(job, tmp_path) as running:
        running.start()
        running.reach(every // 2)
        running.kill(running.trainers[victim])
        running.wait_exit(running.trainers[victim])
        running.replace_trainers(victim, leader=1 - victim)
        running.result()
        result = from_json(Result, running.trainers[running.leader].last_word)
    assert result.best is not None
    assert result.best.since == 2 or result.anchor.samples == 16_000
    assert result.evaluation is not None
    assert result.evaluation.step == result.anchor.step
    store = open_store(job.snapshots.store, None, None)
    dataset = open_dataset(job.data, job.model, files_of(job))
    found = evaluate(job, dataset, store, result.best.anchor.key)
    assert found.auc == pytest.approx(result.best.value, abs=1e-4), "the model that was scored is the one that is saved"


def test_trainer_without_the_gpu_of_its_job_ends_with_a_remedy(tmp_path: Path) -> None:
    job = replace(small_job(tmp_path, samples=20_000), device="cuda")
    with LocalJob(job, tmp_path, environ={"CUDA_VISIBLE_DEVICES": ""}) as running:
        running.start()
        trainer = running.trainers[0]
        assert running.wait_exit(trainer) == ExitCode.BAD_SPEC, "no other process is begun"
    assert trainer.problem.reason == "BadModel"
    assert "set spec.trainers.device to cpu" in trainer.problem.remedy
