"""A job with shared tables and a sequence: a shard that is killed in it changes no bit of what it ends in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cpr_contract.model import OptimizerSpec, PhaseSpec, SparseOptimizerSpec
from cpr_contract.spec import JobSpec
from cpr_trainer.data.files import files_of
from cpr_trainer.data.source import open_dataset
from cpr_trainer.lone import LoneTrainer
from support.feature_data import model_of_features, visits, write_visits
from support.local_job import LocalJob, small_job
from support.model import SavedModel, assert_same, saved_model
from support.warm_start import run_slowly

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]
ROWS = 4000
EPOCHS = 5


@pytest.fixture(scope="module", autouse=True)
def network() -> object:
    """The network can be imported by the processes that are started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=":")
        yield


def features_job(folder: Path) -> JobSpec:
    """Return a job with replay, Adam and a warm-up, with data and saves in `folder`."""
    job = small_job(folder, samples=1)
    data = write_visits(visits(ROWS), folder / "visits", "parquet")
    model = replace(
        model_of_features(),
        dense_optimizer=OptimizerSpec("Adam", 0.01, epsilon=1e-8, schedule=(PhaseSpec("Warmup", 20),)),
        sparse_optimizer=SparseOptimizerSpec("RowWiseAdagrad", 0.05),
    )
    data = replace(data, epochs=EPOCHS, batch_size=100, seed=11, shuffle_rows=1024)
    return replace(job, model=model, data=data, replay_bytes=64 << 20)


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> SavedModel:
    """One trainer to which nothing happened."""
    folder = tmp_path_factory.mktemp("calm")
    job = features_job(folder)
    with LocalJob(job, folder) as running:
        running.start()
        anchor = running.result()
    return saved_model(job, anchor, folder / "model")


def test_a_killed_shard_changes_no_bit(tmp_path: Path, calm: SavedModel) -> None:
    job = features_job(tmp_path)
    with LocalJob(job, tmp_path) as running:
        running.start(run_slowly)
        running.reach(ROWS * EPOCHS // 4)
        running.kill(running.shards[1])
        running.wait_exit(running.shards[1])
        running.replace_shard(1)
        running.wait_for(lambda: running.shard(1).resumed_samples is not None, "all pushes are there again")
        report, anchor = running.shard(1), running.result()
    assert report.replayed_samples > 0
    assert report.lost == ()
    assert_same(saved_model(job, anchor, tmp_path / "model"), calm)


def test_the_job_ends_in_what_one_process_ends_in(tmp_path: Path, calm: SavedModel) -> None:
    job = features_job(tmp_path)
    alone = LoneTrainer(job, open_dataset(job.data, job.model, files_of(job)), job.data.seed)
    alone.train(None, lambda _: None)
    torch.testing.assert_close(calm.dense, alone.replica.parameters, rtol=1e-4, atol=1e-6)
    placement = alone.placement
    for place, table in enumerate(calm.tables):
        places = placement.places(np.arange(len(table), dtype=np.int64) + placement.offsets[place])
        segment = alone.arena.segments[int(placement.band_of[place])]
        torch.testing.assert_close(table, torch.from_numpy(segment.rows[segment.within(places)]), rtol=1e-4, atol=1e-6)
