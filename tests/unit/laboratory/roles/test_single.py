"""What CPRJob's speed is compared with does the same training."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Literal

import pytest
import torch

from cpr_contract.trace import TracedStep
from cpr_trainer.placement import Placement
from cpr_trainer.runtime.timing import Trace
from cprjob_bench.roles.single import train
from support.local_job import small_job
from support.model import train_alone
from support.row_optimizers import KINDS, Kind, mixed, of_kind


@pytest.mark.parametrize("kind", [*KINDS, "mixed"])
def test_it_ends_where_the_oracle_does(tmp_path: Path, kind: Kind | Literal["mixed"]) -> None:
    job = small_job(tmp_path, samples=3000)
    job = mixed(job) if kind == "mixed" else of_kind(job, kind)
    with closing(Trace(tmp_path / "steps")) as trace:
        replica, tables = train(job, trace)
    expected = train_alone(job)
    torch.testing.assert_close(replica.parameters, expected.dense, rtol=1e-3, atol=1e-5)
    placement = Placement.of(job.model, 1)
    for first, table in zip(placement.offsets.tolist(), expected.tables, strict=True):
        places = torch.from_numpy(placement.places(first + torch.arange(len(table)).numpy()))
        torch.testing.assert_close(tables.rows[places], table, rtol=1e-3, atol=1e-5)
    steps = [TracedStep.of_line(line).step for line in (tmp_path / "steps").read_text().splitlines()]
    assert steps == list(range(1, 31))
