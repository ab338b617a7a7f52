"""Jobs that predict two labels, with their own loss and metrics: what they end in is what one process ends in."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpr_contract.codec import from_json
from cpr_contract.reports import Result
from support.local_job import LocalJob
from support.model import SavedModel, assert_close, assert_same, saved_model, train_alone
from support.oracle import OracleResult
from support.two_labels import EXAMPLE, SAMPLES, two_labels, write_visits
from support.warm_start import run_slowly

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]

METRICS = {
    *("click.auc", "click.logloss", "buy.auc", "buy.logloss"),
    *("click.calibration", "buy.calibration"),
}


@pytest.fixture(scope="module", autouse=True)
def network() -> object:
    """The example's network can be imported here, and by the processes that are started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLE))
        patch.setenv("PYTHONPATH", str(EXAMPLE), prepend=":")
        yield


@pytest.fixture(scope="module")
def visits(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_visits(tmp_path_factory.mktemp("visits"))


@pytest.fixture(scope="module")
def alone(visits: str) -> OracleResult:
    return train_alone(two_labels(Path("unused"), visits))


@pytest.fixture(scope="module")
def undisturbed(visits: str, tmp_path_factory: pytest.TempPathFactory) -> SavedModel:
    """One trainer to which nothing happened."""
    folder = tmp_path_factory.mktemp("undisturbed")
    job = two_labels(folder, visits)
    with LocalJob(job, folder) as running:
        running.start()
        anchor = running.result()
    return saved_model(job, anchor, folder / "model")


def assert_near(model: SavedModel, expected: OracleResult, tolerance: float) -> None:
    assert model.metrics.keys() == expected.metrics.keys() == METRICS
    for name, value in expected.metrics.items():
        assert model.metrics[name] == pytest.approx(value, abs=tolerance), name


def test_one_trainer_equals_the_oracle_to_rounding(undisturbed: SavedModel, alone: OracleResult) -> None:
    assert_close(undisturbed, alone)
    assert alone.metrics["buy.auc"] > 0.7, "there is something to learn"


def test_two_trainers_learn_as_well_and_their_last_word_tells_it(
    tmp_path: Path, visits: str, alone: OracleResult
) -> None:
    job = two_labels(tmp_path, visits, trainers=2)
    with LocalJob(job, tmp_path) as running:
        running.start()
        anchor = running.result()
    model = saved_model(job, anchor, tmp_path / "model")
    assert model.scored == SAMPLES * 4 // 5, "every sample is scored once"
    assert_near(model, alone, 0.004)
    assert dict(from_json(Result, running.trainers[0].last_word).metrics) == model.metrics


def test_two_trainers_learn_on_without_what_a_killed_shard_lost(
    tmp_path: Path, visits: str, alone: OracleResult
) -> None:
    job = two_labels(tmp_path, visits, trainers=2)
    # No save before the kill, so that the first third is lost, whenever a save would have been there.
    with LocalJob(job, tmp_path, interval_s=3600.0) as running:
        running.start(run_slowly)
        running.reach(SAMPLES // 3)
        running.kill(running.shards[1])
        running.wait_exit(running.shards[1])
        running.replace_shard(1)
        running.wait_for(lambda: running.shard(1).resumed_samples is not None, "both trainers push again")
        anchor = running.result()
        lost = [running.shard(index).lost for index in range(2)]
    assert lost[0] == ()
    assert all(start < stop for start, stop in lost[1])
    model = saved_model(job, anchor, tmp_path / "model")
    assert model.scored == SAMPLES * 4 // 5, "every sample is scored once"
    assert_near(model, alone, 0.03)


def test_a_shard_killed_and_a_rollback_cost_nothing(tmp_path: Path, visits: str, undisturbed: SavedModel) -> None:
    job = two_labels(tmp_path, visits)
    with LocalJob(job, tmp_path) as running:
        running.start(run_slowly)
        running.wait_for(lambda: running.trainer().anchors, "there is an anchor")
        running.reach(SAMPLES // 2)
        running.kill(running.shards[1])
        running.roll_back(running.trainer().anchors[-1])
        running.replace_shard(1)
        anchor = running.result()
    assert undisturbed.metrics.keys() == METRICS
    assert_same(saved_model(job, anchor, tmp_path / "model"), undisturbed)
