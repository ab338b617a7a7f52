"""A run of one trainer that nothing happened to: what another run that lost nothing must equal, bit for bit."""

import pytest

from support.local_job import LocalJob, small_job
from support.model import SavedModel, saved_model

SAMPLES = 60_000


@pytest.fixture(scope="session")
def calm(tmp_path_factory: pytest.TempPathFactory) -> SavedModel:
    folder = tmp_path_factory.mktemp("calm")
    job = small_job(folder, samples=SAMPLES)
    with LocalJob(job, folder) as running:
        running.start()
        anchor = running.result()
    return saved_model(job, anchor, folder / "model")
