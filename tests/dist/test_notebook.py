"""What `fit` ends in is what a job of real processes ends in: one trainer, two shards, the same seed."""

from pathlib import Path
from typing import Any

import pytest
import torch

from cpr_contract.spec import JobSpec
from cprjob import fit
from support.local_job import small_job
from support.model import SavedModel, assert_fitted

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]


def spec_of(job: JobSpec) -> dict[str, Any]:
    """The job as its user would write it."""
    model, data = job.model, job.data
    dense, sparse = model.dense_optimizer, model.sparse_optimizer
    return {
        "model": {
            "embeddingDim": model.embedding_dim,
            "bottomMlp": list(model.bottom_mlp),
            "topMlp": list(model.top_mlp),
            "tables": [{"name": table.name, "rows": table.rows} for table in model.tables],
            "denseOptimizer": {"kind": dense.kind, "learningRate": dense.learning_rate},
            "sparseOptimizer": {"kind": sparse.kind, "learningRate": sparse.learning_rate},
        },
        "data": {"format": data.format, "samples": data.samples, "batchSize": data.batch_size, "seed": data.seed},
    }


def test_a_job_and_fit_end_in_the_same_model(calm: SavedModel, tmp_path: Path) -> None:
    job = small_job(tmp_path, samples=60_000)
    torch.set_num_threads(1)  # as the job's processes have: sums are in the same order
    found = fit(spec_of(job))
    assert_fitted(found, job, calm)
