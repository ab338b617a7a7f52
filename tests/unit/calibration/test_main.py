from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest

from cpr_contract import env
from cpr_contract.codec import from_json, to_json
from cpr_contract.requests import Experiment, Outcome, ShardLoss, Trial, TrialReport
from cpr_contract.spec import JobSpec
from cpr_trainer.calibration import StepLoss, lost_sample_shards, run, step_losses
from cpr_trainer.data.order import BatchOrder
from cpr_trainer.errors import DataError
from cpr_trainer.runtime import BadSpecError
from support.local_job import small_job
from support.row_dims import with_dims

SAMPLES = 3000


@pytest.fixture
def job(tmp_path: Path) -> JobSpec:
    return small_job(tmp_path, samples=SAMPLES)


def reports(job: JobSpec, document: str) -> list[TrialReport]:
    sink = io.StringIO()
    run({env.SPEC: to_json(job)}, io.StringIO(document), sink)
    return [from_json(TrialReport, line) for line in sink.getvalue().splitlines()]


def outcomes(job: JobSpec, *trials: Trial, shards: int = 4) -> list[Outcome]:
    found = reports(job, to_json(Experiment(shards, trials)))
    return [report.outcome for report in found if report.outcome is not None]


def test_trials_of_one_seed_differ_by_their_losses_alone(job: JobSpec) -> None:
    loss = ShardLoss((0, 1, 2, 3), 0.2, 0.7)
    lossless, again, late, lossy, other = outcomes(
        job, Trial(1, ()), Trial(1, ()), Trial(1, (ShardLoss((0,), 0.9, 1.0),)), Trial(1, (loss,)), Trial(2, ())
    )
    assert lossless == again
    assert (lossless.pls, lossless.lost_sample_shards, lossless.lost_row_updates) == (0, 0, 0)
    assert (late.auc, late.log_loss) == (lossless.auc, lossless.log_loss), "nothing is scored after the end"
    assert late.lost_sample_shards == 300
    assert late.lost_row_updates > 0
    assert lossless.log_loss is not None
    assert lossy.log_loss is not None
    assert lossy.log_loss > lossless.log_loss
    assert other.auc != lossless.auc


def test_the_portion_of_lost_samples_is_the_injected_one(job: JobSpec) -> None:
    (outcome,) = outcomes(job, Trial(1, (ShardLoss((1, 2), 0.1, 0.3), ShardLoss((2,), 0.5, 0.6))))
    assert outcome.lost_sample_shards == SAMPLES * 2 // 10 * 2 + SAMPLES // 10
    assert outcome.pls == outcome.lost_sample_shards / (SAMPLES * 4) == 0.125


def test_every_trial_reports_its_progress(job: JobSpec) -> None:
    found = reports(job, to_json(Experiment(1, (Trial(1, ()), Trial(2, ())))))
    assert [report.trial for report in found if report.outcome is not None] == [0, 1]
    assert {report.total_samples for report in found} == {SAMPLES}
    assert found[-1].samples == SAMPLES
    assert found[0].samples < SAMPLES
    assert found[0].outcome is None


def test_impossible_experiment_names_the_cause(job: JobSpec) -> None:
    with pytest.raises(BadSpecError, match="cannot be read"):
        reports(job, "{}")
    with pytest.raises(BadSpecError, match="cannot be placed"):
        outcomes(job, Trial(1, ()), shards=10**6)
    lost = replace(job, data=replace(job.data, format="Criteo", uri="/nowhere.tsv", samples=10))
    with pytest.raises(DataError, match="cannot be opened"):
        outcomes(lost, Trial(1, ()))


def test_tables_of_several_dims_are_refused(job: JobSpec) -> None:
    with pytest.raises(BadSpecError, match="tables of one dim, and these have 8, 4") as caught:
        outcomes(with_dims(job, None, 4), Trial(1, ()))
    assert "spec.model.tables.dim" in caught.value.remedy


def test_portions_become_steps_shard_by_shard() -> None:
    losses = (ShardLoss((2, 0), 0.5, 0.751), ShardLoss((0,), 0.0, 0.5))
    assert step_losses(losses, shards=3, steps=10) == (StepLoss(0, 0, 5), StepLoss(0, 5, 8), StepLoss(2, 5, 8))
    assert step_losses([ShardLoss((0,), 0.52, 0.54)], shards=1, steps=10) == (), "it is shorter than a step"
    with pytest.raises(BadSpecError, match="overlap"):
        step_losses([ShardLoss((0, 1), 0.1, 0.5), ShardLoss((1, 2), 0.4, 0.6)], shards=3, steps=10)


@pytest.mark.parametrize(
    "losses",
    [
        [ShardLoss((3,), 0.1, 0.2)],
        [ShardLoss((-1,), 0.1, 0.2)],
        [ShardLoss((0,), 0.2, 0.1)],
        [ShardLoss((0,), -0.1, 0.1)],
        [ShardLoss((0,), 0.5, 1.1)],
    ],
)
def test_a_loss_that_cannot_be_is_refused(losses: list[ShardLoss]) -> None:
    with pytest.raises(BadSpecError, match="does not fit a run over 3 shards"):
        step_losses(losses, shards=3, steps=10)


def test_smaller_last_batch_loses_fewer_samples() -> None:
    order = BatchOrder(rows=95, total_samples=95, batch_size=10, seed=0)
    assert lost_sample_shards([StepLoss(0, 2, 4), StepLoss(1, 9, 10)], order) == 20 + 5
