"""Longer jobs, in which several trainers learn as well as one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cpr_contract.codec import from_json
from cpr_contract.reports import Result
from cpr_contract.spec import EarlyStopSpec, EvaluationSpec
from cpr_trainer.data.files import files_of
from cpr_trainer.data.source import open_dataset
from cpr_trainer.evaluate import evaluate
from cpr_trainer.store import open_store
from support.local_job import LocalJob, small_job, small_steps

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]


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
