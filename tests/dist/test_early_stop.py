"""A job that ends early ends at the same sample with the same model, whatever dies meanwhile."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from cpr_contract import env
from cpr_contract.codec import from_json
from cpr_contract.env import KEEPER
from cpr_contract.reports import ExitCode, HeldOutScores, Result
from cpr_contract.roster import AnchorRef
from cpr_contract.spec import EarlyStopSpec, EvaluationSpec, JobSpec
from cpr_trainer.access import Rows, of_bands
from cpr_trainer.arrays import Ints
from cpr_trainer.data.files import files_of
from cpr_trainer.data.source import open_dataset
from cpr_trainer.evaluate import evaluate, score_held_out
from cpr_trainer.lone import LoneTrainer
from cpr_trainer.rows import UniqueRows
from cpr_trainer.store import open_store
from cpr_trainer.trainer.early_stop import Verdict
from support.local_job import LocalJob, small_job, small_steps
from support.model import assert_same, saved_model
from support.warm_start import run_slowly

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]
SAMPLES, EVERY = 16_000, 1_600
#: Evaluations soon gain less than this. Two evaluations of a good model differ by far more than rounding.
STOP = EarlyStopSpec("AUC", 2, 0.022)


def stopping(folder: Path, stop: EarlyStopSpec = STOP, trainers: int = 1, every: int = EVERY) -> JobSpec:
    job = replace(small_job(folder, samples=SAMPLES, trainers=trainers), replay_bytes=64 << 20)
    return replace(job, data=replace(job.data, hold_out=0.1), evaluation=EvaluationSpec(every, 10**6, stop))


def word(running: LocalJob) -> Result:
    running.result()
    return from_json(Result, running.trainers[running.leader].last_word)


@cache
def alone(every: int = EVERY) -> tuple[HeldOutScores, ...]:
    """What a single process scores at each evaluation, that after the last sample among them."""
    job = stopping(Path("/nowhere"))
    dataset = open_dataset(job.data, job.model, files_of(job))
    trainer, found = LoneTrainer(job, dataset, job.data.seed), list[HeldOutScores]()
    last = SAMPLES // job.data.batch_size

    class Look:
        def after_step(self, step: int, slots: Ints) -> None:
            del slots
            samples = step * job.data.batch_size
            if samples % every and step != last:
                return

            def fetch(rows: UniqueRows) -> Rows:
                return of_bands(tuple(map(torch.from_numpy, trainer.arena.read(rows.places))))

            scores = score_held_out(trainer.replica.model, job, dataset, trainer.placement, fetch)
            figures = (scores.auc(), scores.log_loss(), scores.normalised_entropy(), scores.calibration())
            found.append(HeldOutScores(step, samples, scores.samples, *figures))

    torch.set_num_threads(1)
    trainer.train(Look(), lambda _: None)
    return tuple(found)


def expected(stop: EarlyStopSpec = STOP, every: int = EVERY) -> tuple[Verdict, HeldOutScores]:
    """The verdict that ends the job, and its last evaluation."""
    verdict = Verdict()
    for scores in alone(every):
        verdict = verdict.after(scores, stop)
        if verdict.ends(stop):
            break
    return verdict, scores


def assert_ended_as_alone(result: Result, stop: EarlyStopSpec = STOP, every: int = EVERY) -> None:
    verdict, last = expected(stop, every)
    assert result.best is not None
    assert (result.anchor.step, result.evaluation) == (verdict.step, last)
    assert (result.best.anchor.step, result.best.value, result.best.since) == (
        verdict.best_step,
        verdict.best,
        verdict.since,
    )


def test_the_test_stops_in_the_middle() -> None:
    verdict, _ = expected()
    assert verdict.ends(STOP)
    assert 0 < verdict.best_step < verdict.step < alone()[-1].step


def test_a_job_ends_where_a_single_process_would_and_its_best_model_is_an_anchor(tmp_path: Path) -> None:
    job = stopping(tmp_path)
    with LocalJob(job, tmp_path) as running:
        running.start()
        result = word(running)
    assert_ended_as_alone(result)
    assert result.best is not None
    store = open_store(job.snapshots.store, None, None)
    dataset = open_dataset(job.data, job.model, files_of(job))
    found = evaluate(job, dataset, store, result.best.anchor.key)
    assert (found.step, found.auc) == (result.best.anchor.step, result.best.value)


@pytest.mark.parametrize("every", [EVERY, SAMPLES])
def test_without_an_early_end_the_last_model_is_evaluated_and_the_best_counts(tmp_path: Path, every: int) -> None:
    """With one evaluation the last model is the best one."""
    stop = EarlyStopSpec("LogLoss", 1000)
    job = stopping(tmp_path, stop, every=every)
    with LocalJob(job, tmp_path) as running:
        running.start()
        result = word(running)
    assert result.anchor.samples == SAMPLES
    assert_ended_as_alone(result, stop, every)
    if every == SAMPLES:
        assert result.best is not None
        assert result.best.anchor == result.anchor


def test_killed_shards_and_leaders_change_nothing(tmp_path: Path) -> None:
    """Bit for bit, the best model among it."""
    models = []
    for name, harm in (("calm", False), ("harmed", True)):
        folder = tmp_path / name
        folder.mkdir()
        job = stopping(folder)
        with LocalJob(job, folder, environ={KEEPER: "1"}) as running:
            running.start(run_slowly)
            if harm:
                running.reach(EVERY // 2)
                running.kill(running.shards[1])
                running.wait_exit(running.shards[1])
                running.replace_shard(1)
                running.reach(2 * EVERY)
                running.kill_server(running.trainers[0])
                running.wait_for(lambda: running.trainer().lives == 2, "the next life begins")
            result = word(running)
        assert_ended_as_alone(result)
        assert result.best is not None
        models.append(saved_model(job, result.best.anchor, folder / "model"))
    assert_same(models[1], models[0])


def test_a_job_that_goes_back_to_an_anchor_ends_as_if_it_had_not(tmp_path: Path) -> None:
    job = stopping(tmp_path)
    with LocalJob(job, tmp_path) as running:
        running.start(run_slowly)
        running.reach(2 * EVERY)
        anchors = running.wait_for(lambda: running.trainer().anchors, "an anchor is committed")
        running.roll_back(anchors[0])
        running.wait_for(lambda: running.trainer().counters.generation == 2, "the trainer goes back")
        result = word(running)
    assert result.anchor.generation == 2
    assert_ended_as_alone(result)


def test_a_job_that_is_suspended_goes_on_to_the_same_end(tmp_path: Path) -> None:
    job = stopping(tmp_path)
    with LocalJob(job, tmp_path) as running:
        running.start()
        running.reach(EVERY + 100)
        running.stopped = frozenset({env.ROLE_TRAINER})
        running.publish()
        assert running.wait_exit(running.trainers[0]) == ExitCode.FLUSHED
        running.stopped = frozenset()
        running.anchor = from_json(AnchorRef, running.trainers[0].last_word)
        running.counters = replace(running.counters, generation=2)
        running.replace_trainers(0, leader=0)
        result = word(running)
    assert_ended_as_alone(result)


@pytest.mark.parametrize("victim", [0, 1], ids=["leader", "follower"])
def test_two_trainers_come_to_one_verdict_though_one_is_replaced(tmp_path: Path, victim: int) -> None:
    job = small_steps(stopping(tmp_path, STOP, trainers=2))
    with LocalJob(job, tmp_path) as running:
        running.start()
        running.reach(EVERY // 2)
        running.kill(running.trainers[victim])
        running.wait_exit(running.trainers[victim])
        running.replace_trainers(victim, leader=1 - victim)
        result = word(running)
    assert result.best is not None
    assert result.best.since == 2 or result.anchor.samples == SAMPLES
    assert result.evaluation is not None
    assert result.evaluation.step == result.anchor.step
    store = open_store(job.snapshots.store, None, None)
    dataset = open_dataset(job.data, job.model, files_of(job))
    found = evaluate(job, dataset, store, result.best.anchor.key)
    assert found.auc == pytest.approx(result.best.value, abs=1e-4), "the model that was scored is the one that is saved"
