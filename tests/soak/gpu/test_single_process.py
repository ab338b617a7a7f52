"""A job in one process on a GPU: the oracle's model, handed out on the processors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cprjob import fit
from support.devices import NO_GPU
from support.documents import edited
from support.local_job import small_job
from support.model import assert_close, single_process_model, train_alone
from support.row_optimizers import Kind

pytestmark = NO_GPU


@pytest.mark.parametrize("kind", ["RowWiseAdagrad", "SGD"])
def test_job_without_losses_ends_as_the_oracle(tmp_path: Path, kind: Kind) -> None:
    job = small_job(tmp_path, samples=3000, shards=3, batch_size=100)
    sparse = replace(job.model.sparse_optimizer, kind=kind)
    job = replace(job, model=replace(job.model, sparse_optimizer=sparse), device="cuda")
    assert_close(single_process_model(job), train_alone(job))


def test_fitted_model_is_handed_out_on_the_cpu() -> None:
    data = {"format": "Synthetic", "samples": 4000, "batchSize": 100}
    job = edited({"spec.data": data, "spec.trainers": {"device": "cuda"}})["spec"]
    found = fit({name: job[name] for name in ("model", "data", "trainers")})
    assert {each.device.type for each in found.network.state_dict().values()} == {"cpu"}
    assert found.predict(found.batch(range(5))).shape == (5,)
