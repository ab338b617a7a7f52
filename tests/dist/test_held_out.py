"""Held-out samples are scored while the job trains: exactly as a single process would, and training does not notice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cpr_contract.codec import from_json
from cpr_contract.reports import HeldOutScores, Result
from cpr_contract.spec import EvaluationSpec, JobSpec
from cpr_trainer.access import Rows, of_bands
from cpr_trainer.arrays import Ints
from cpr_trainer.data.files import files_of
from cpr_trainer.data.source import open_dataset
from cpr_trainer.evaluate import score_held_out
from cpr_trainer.lone import LoneTrainer
from cpr_trainer.rows import UniqueRows
from support.local_job import LocalJob, small_job
from support.model import assert_same, saved_model

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]
SAMPLES, EVERY, LAST_DUE = 30_000, 7_000, 280


def scoring(folder: Path, trainers: int = 1) -> JobSpec:
    job = small_job(folder, samples=SAMPLES, trainers=trainers)
    return replace(job, data=replace(job.data, hold_out=0.1), evaluation=EvaluationSpec(EVERY, 10**6))


def scored_alone(job: JobSpec) -> HeldOutScores:
    """What a single process finds after step LAST_DUE."""
    dataset = open_dataset(job.data, job.model, files_of(job))
    trainer, found = LoneTrainer(job, dataset, job.data.seed), list[HeldOutScores]()

    class Look:
        def after_step(self, step: int, slots: Ints) -> None:
            del slots
            if step != LAST_DUE:
                return

            def fetch(rows: UniqueRows) -> Rows:
                return of_bands(tuple(map(torch.from_numpy, trainer.arena.read(rows.places))))

            scores = score_held_out(trainer.replica.model, job, dataset, trainer.placement, fetch)
            found.append(
                HeldOutScores(
                    step,
                    step * job.data.batch_size,
                    scores.samples,
                    scores.auc(),
                    scores.log_loss(),
                    scores.normalised_entropy(),
                    scores.calibration(),
                )
            )

    torch.set_num_threads(1)
    trainer.train(Look(), lambda _: None)
    return found[0]


def test_one_trainer_scores_what_a_single_process_would_and_trains_on_as_if_it_had_not(tmp_path: Path) -> None:
    job, folders = scoring(tmp_path / "with"), (tmp_path / "with", tmp_path / "without")
    models = []
    for folder, evaluation in zip(folders, (job.evaluation, None), strict=True):
        folder.mkdir()
        mine = replace(scoring(folder), evaluation=evaluation)
        with LocalJob(mine, folder) as running:
            running.start()
            anchor = running.result()
            word = from_json(Result, running.trainers[0].last_word)
        models.append(saved_model(mine, anchor, folder / "model"))
        assert (word.evaluation is None) == (evaluation is None)
        if word.evaluation is not None:
            assert word.evaluation == scored_alone(mine)
            assert word.evaluation.normalised_entropy is not None
            assert word.evaluation.normalised_entropy < 1, "it has learnt something"
    assert_same(models[0], models[1])


def test_two_trainers_score_each_sample_once_though_one_is_replaced(tmp_path: Path) -> None:
    job = scoring(tmp_path, trainers=2)
    with LocalJob(job, tmp_path) as running:
        running.start()
        first = running.wait_for(lambda: running.trainer().evaluation, "the model is scored")
        running.kill(running.trainers[1])
        running.wait_exit(running.trainers[1])
        running.replace_trainers(1, leader=0)
        running.result()
        found = from_json(Result, running.trainers[0].last_word).evaluation
    assert found is not None
    alone = scored_alone(scoring(tmp_path))
    assert first.scored == found.scored == alone.scored
    assert (found.step, found.samples) == (LAST_DUE, EVERY * (SAMPLES // EVERY))
    assert found.auc == pytest.approx(alone.auc, abs=0.02)
    assert found.logloss == pytest.approx(alone.logloss, abs=0.02)
