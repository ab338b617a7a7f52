"""Every optimizer of rows with one to four trainers is plain torch on the global batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cpr_contract.model import RowOptimizer
from processes.jobs import JOBS, with_rows_by
from processes.test_merged_steps import run_calmly
from support.model import assert_norms_close

pytestmark = pytest.mark.dist


@pytest.mark.parametrize("trainers", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["SGD", "RowWiseAdagrad", "Adagrad", "Adam"])
def test_trainers_are_plain_torch_on_the_global_batch(kind: RowOptimizer, trainers: int, tmp_path: Path) -> None:
    job = with_rows_by(replace(JOBS["merged_steps"](tmp_path), trainers=trainers), kind)
    assert_norms_close(run_calmly(job, tmp_path), job)
