"""All trainers of a job have the workers that were measured for it, whoever is replaced."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cpr_contract import CONTRACT_VERSION
from cpr_contract.env import KEEPER
from cpr_contract.manifests import WorkersManifest
from cpr_contract.spec import MEASURED, JobSpec
from cpr_trainer.checkpoint.format.records import pin
from cpr_trainer.store import open_store
from support.local_job import LocalJob, small_job
from support.model import SavedModel, assert_same, saved_model
from support.warm_start import run_slowly

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]
SAMPLES = 30_000
#: No trainer here would measure so many: it has one processor.
COUNT = 3


def measured_job(folder: Path, trainers: int) -> JobSpec:
    """A job whose first leader has measured how many workers are fastest, and was lost since."""
    job = replace(small_job(folder, samples=SAMPLES, trainers=trainers), workers=MEASURED)
    found = WorkersManifest(CONTRACT_VERSION, job.job_uid, COUNT, "measured before")
    pin(open_store(job.snapshots.store, None, None), found)
    return job


def test_leaders_followers_and_those_that_replace_them_have_as_many(tmp_path: Path) -> None:
    with LocalJob(measured_job(tmp_path, trainers=2), tmp_path) as running:
        running.start()
        running.reach(SAMPLES // 6)
        assert [running.trainer(rank).workers for rank in (0, 1)] == [COUNT, COUNT]
        for index in (1, 0):
            running.kill(running.trainers[index])
            running.wait_exit(running.trainers[index])
            running.replace_trainers(index, leader=0)
            running.wait_for(lambda index=index: running.trainer(index).workers, "it has read how many")
            assert running.trainer(index).workers == COUNT
        assert running.result().samples == SAMPLES


def model(folder: Path, job: JobSpec, *portions: float) -> SavedModel:
    """Train, and kill the process of the trainer at these portions of the samples."""
    with LocalJob(job, folder, environ={KEEPER: "1"}) as running:
        running.start(run_slowly)
        for portion in portions:
            running.reach(int(portion * SAMPLES))
            before = running.trainer().lives
            running.kill_server(running.trainers[0])
            running.wait_for(lambda before=before: running.trainer().lives > before, "the next life begins")
        anchor = running.result()
    return saved_model(job, anchor, folder / "model")


def test_a_job_with_kills_ends_in_the_bits_of_one_that_states_the_number(tmp_path: Path) -> None:
    """The gradients of three workers and more are summed in one order, so that steps can be computed again."""
    (tmp_path / "stated").mkdir()
    (tmp_path / "measured").mkdir()
    stated = replace(small_job(tmp_path / "stated", samples=SAMPLES), workers=COUNT)
    expected = model(tmp_path / "stated", stated)
    assert_same(model(tmp_path / "measured", measured_job(tmp_path / "measured", trainers=1), 0.3, 0.6), expected)
