"""The rate schedule of MLPerf's DLRM, scaled down to a real log: four trainers have the loss curve of plain torch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cpr_contract.model import OptimizerSpec, PhaseSpec, SparseOptimizerSpec, TableSpec
from cpr_contract.spec import DataSpec
from processes.test_merged_steps import run_calmly
from support.local_job import small_job
from support.model import assert_norms_close, train_alone
from support.realdata import click_log

pytestmark = [pytest.mark.dist, pytest.mark.realdata]

BATCH = 128
#: As docs/models.md has it, with 100 steps for 25,000.
PHASES = (PhaseSpec("Warmup", 32), PhaseSpec("Constant", 248), PhaseSpec("Polynomial", 120, power=2.0))
RATE = 0.5


@pytest.mark.parametrize("steps", [100, 200, 300, 400])
def test_loss_up_to_a_step_is_that_of_plain_torch(steps: int, tmp_path: Path) -> None:
    job = small_job(tmp_path, samples=steps * BATCH)
    model = replace(
        job.model,
        tables=tuple(TableSpec(f"c{number}", 2000) for number in range(26)),
        dense_optimizer=OptimizerSpec("SGD", RATE, schedule=PHASES),
        sparse_optimizer=SparseOptimizerSpec("SGD", RATE, schedule=PHASES),
    )
    log = DataSpec("Criteo", click_log("criteo_80k.tsv.gz").as_uri(), None, steps * BATCH, BATCH, 1, 0)
    job = replace(job, model=model, data=log, trainers=4, sparse_updates="PerStep")
    found, expected = run_calmly(job, tmp_path), train_alone(job)
    assert_norms_close(found, job)
    assert found.log_loss == pytest.approx(expected.log_loss, abs=1e-5)
