"""The training that the benches compare with CPRJob's: saves by a strategy, and a single process."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest
import torch

from cpr_contract.choices import Strategy
from cpr_contract.spec import JobSpec
from cpr_contract.trace import TracedStep
from cpr_trainer.arrays import Ints
from cpr_trainer.data.files import files_of
from cpr_trainer.data.source import open_dataset
from cpr_trainer.lone import LoneTrainer
from cpr_trainer.placement import Placement
from cpr_trainer.runtime.timing import Trace
from cprjob_bench.documents import Failure, Saving
from cprjob_bench.roles.priority import (
    SavingShards,
    Schedule,
    failing_shards,
)
from cprjob_bench.roles.single import train
from support.local_job import small_job
from support.model import train_alone
from support.row_optimizers import mixed

# --- saves by a strategy

STEPS, BATCH, SHARDS = 40, 50, 3
FAILURES = (Failure((0, 2), 0.4), Failure((2,), 0.45), Failure((1,), 0.9))


@pytest.fixture
def job(tmp_path: Path) -> JobSpec:
    return small_job(tmp_path, samples=STEPS * BATCH, shards=SHARDS, batch_size=BATCH)


class Accounted:
    """A trial, with an account of every row: its updates since its last save, and its saved content."""

    def __init__(self, job: JobSpec, saving: Saving) -> None:
        dataset = open_dataset(job.data, job.model, files_of(job))
        self.trainer = LoneTrainer(job, dataset, 1)
        self.arena, order, placement = self.trainer.arena, self.trainer.order, Placement.of(job.model, SHARDS)
        schedule = Schedule.of(saving, order, dataset, placement)
        self.trial = SavingShards(saving, schedule, self.arena, placement, order, seed=1)
        self.failing = failing_shards(saving.failures, SHARDS, STEPS)
        self.shards = np.searchsorted(placement.starts, np.arange(len(self.arena)), side="right") - 1
        self.saved = self.arena.rows.copy()
        self.updates = np.zeros(len(self.arena), np.int64)
        self.lost = 0
        self.trainer.train(self, lambda _: None)

    def after_step(self, step: int, slots: Ints) -> None:
        np.add.at(self.updates, slots, 1)
        before = self.arena.rows.copy()
        self.trial.after_step(step, slots)
        failed = np.isin(self.shards, list(self.failing.get(step, ())))
        np.testing.assert_array_equal(self.arena.rows, np.where(failed[:, None], self.saved, before))
        self.lost += int(self.updates[failed].sum())
        self.updates[failed] = 0
        written = self.trial._rows.pending == 0
        self.saved[written] = self.arena.rows[written]
        self.updates[written] = 0
        np.testing.assert_array_equal(self.trial._rows.pending, self.updates)


@pytest.mark.parametrize("strategy", get_args(get_type_hints(Saving)["strategy"]))
def test_failed_shards_go_back_to_their_saved_rows(job: JobSpec, strategy: Strategy) -> None:
    found = Accounted(job, Saving(strategy, 0.25, 2, 0.2, FAILURES))
    assert found.trial.lost_row_updates == found.lost > 0
    # Full saves at steps 10, 20, 30; the others save everything at 20 and 40. Shard 2 fails at 16, and again at 18.
    anchor = {16: 10, 36: 30} if strategy == "Full" else {16: 0, 36: 20}
    lost_steps = 2 * (16 - anchor[16]) + (18 - 16) + (36 - anchor[36])
    assert found.trial.lost_sample_shards == lost_steps * BATCH


# --- a single process


def test_single_process_trains_as_the_oracle(tmp_path: Path) -> None:
    job = mixed(small_job(tmp_path, samples=3000))
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
