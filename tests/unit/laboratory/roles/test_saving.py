"""Trials in which shards save by a strategy and fail, step by step against a plain account of every row."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest

from cpr_contract.choices import Strategy
from cpr_contract.model import SparseOptimizerSpec
from cpr_contract.spec import JobSpec
from cpr_trainer.arrays import Floats, Ints
from cpr_trainer.data.files import files_of
from cpr_trainer.data.source import open_dataset
from cpr_trainer.lone import LoneTrainer
from cpr_trainer.placement import Placement
from cpr_trainer.runtime import BadSpecError
from cprjob_bench.documents import Failure, Saving
from cprjob_bench.roles.priority import SavingShards, Schedule, failing_shards
from support.local_job import small_job

STRATEGIES = get_args(get_type_hints(Saving)["strategy"])
STEPS, BATCH, SHARDS = 40, 50, 3
FAILURES = (Failure((0, 2), 0.4), Failure((2,), 0.45), Failure((1,), 0.9))


@pytest.fixture
def job(tmp_path: Path) -> JobSpec:
    return small_job(tmp_path, samples=STEPS * BATCH, shards=SHARDS, batch_size=BATCH)


class Watched:
    """Runs a trial's saves and failures, and keeps the account of every row's updates by what the store would hold."""

    def __init__(self, job: JobSpec, saving: Saving) -> None:
        dataset = open_dataset(job.data, job.model, files_of(job))
        self.trainer = LoneTrainer(job, dataset, 1)
        self.placement = Placement.of(job.model, SHARDS)
        self.schedule = Schedule.of(saving, self.trainer.order, dataset, self.placement)
        arena, order = self.trainer.arena, self.trainer.order
        self.inner = SavingShards(saving, self.schedule, arena, self.placement, order, seed=1)
        self.failing = failing_shards(saving.failures, SHARDS, STEPS)
        self.updates: Counter[int] = Counter()
        self.content: dict[int, Floats] = {slot: row.copy() for slot, row in enumerate(arena.rows)}
        self.lost = 0
        self.trainer.train(self, lambda _: None)

    def after_step(self, step: int, slots: Ints) -> None:
        self.updates.update(slots.tolist())
        before = self.trainer.arena.rows.copy()
        self.inner.after_step(step, slots)
        rows = self.trainer.arena.rows
        for slot in range(len(rows)):
            shard = int(np.searchsorted(self.placement.starts, slot, side="right")) - 1
            if shard in self.failing.get(step, ()):
                assert np.array_equal(rows[slot], self.content[slot]), "a failed shard is as it was saved"
                self.lost += self.updates.pop(slot, 0)
            else:
                assert np.array_equal(rows[slot], before[slot]), "nothing else moves"
        pending = self.inner._rows.pending.tolist()
        for slot in list(self.updates):
            if not pending[slot]:
                self.content[slot] = rows[slot].copy()
                del self.updates[slot]
        assert {slot: count for slot, count in enumerate(pending) if count} == dict(self.updates)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_failed_shards_go_back_to_what_was_saved_of_them(job: JobSpec, strategy: Strategy) -> None:
    run = Watched(job, Saving(strategy, 0.25, 2, 0.2, FAILURES))
    assert run.inner.lost_row_updates == run.lost > 0
    # Full saves at steps 10, 20, 30; the others save everything at 20 and 40. Shard 2 fails at 16, and again at 18.
    anchor = {16: 10, 36: 30} if strategy == "Full" else {16: 0, 36: 20}
    lost_steps = 2 * (16 - anchor[16]) + (18 - 16) + (36 - anchor[36])
    assert run.inner.lost_sample_shards == lost_steps * BATCH


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_writes_as_much_as_full(job: JobSpec, strategy: Strategy) -> None:
    def written(name: Strategy) -> int:
        return Watched(job, Saving(name, 0.25, 2, 0.2, ())).inner.saved.rows_written

    assert 0.9 * written("Full") <= written(strategy) <= written("Full")


def test_a_strategy_claims_what_it_holds_for_important(job: JobSpec) -> None:
    lost = {
        name: Watched(job, Saving(name, 0.25, 2, 0.2, (Failure((0, 1, 2), 0.45),))).inner.lost_row_updates
        for name in ("MFU", "SSU")
    }
    assert lost["MFU"] < lost["SSU"], "it alone knows how many updates are pending"


def test_memory_of_trackers_is_told(job: JobSpec) -> None:
    full, mfu = (Watched(job, Saving(name, 0.25, 2, 0.2, ())) for name in ("Full", "MFU"))
    assert full.inner.saved.tracker_bytes == 0
    assert mfu.inner.saved.tracker_bytes == 4 * mfu.placement.total


def test_failures_are_rounded_to_steps_and_joined() -> None:
    failures = (Failure((0, 1), 0.5), Failure((1, 2), 0.501), Failure((0,), 0.001))
    assert failing_shards(failures, 3, 10) == {5: {0, 1, 2}, 1: {0}}


@pytest.mark.parametrize("failure", [Failure((3,), 0.5), Failure((-1,), 0.5), Failure((0,), 0.0), Failure((0,), 1.1)])
def test_a_failure_that_cannot_be_is_refused(failure: Failure) -> None:
    with pytest.raises(BadSpecError, match="does not fit a run over 3 shards"):
        failing_shards((failure,), 3, 10)


def test_growth_without_an_accumulator_is_refused(job: JobSpec) -> None:
    job = replace(job, model=replace(job.model, sparse_optimizer=SparseOptimizerSpec("SGD", 0.1)))
    with pytest.raises(BadSpecError, match="Growth"):
        Watched(job, Saving("Growth", 0.25, 2, 0.2, ()))
