"""The training that the benches compare with CPRJob's: saves by strategy, eager parity, and a single process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast, get_args, get_type_hints

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cpr_contract.choices import Strategy
from cpr_contract.spec import JobSpec
from cpr_contract.trace import TracedStep
from cpr_trainer.access import find_access
from cpr_trainer.arrays import Ints
from cpr_trainer.data.files import files_of
from cpr_trainer.data.order import BatchOrder
from cpr_trainer.data.source import open_dataset
from cpr_trainer.exchange import Exchange, loop
from cpr_trainer.lone import LoneTrainer
from cpr_trainer.parity.coding import Parts, Ring
from cpr_trainer.placement import Placement
from cpr_trainer.runtime import BadSpecError
from cpr_trainer.runtime.timing import Trace
from cpr_trainer.shard import server
from cpr_trainer.tables.arena import Arena
from cpr_trainer.tables.segments import Seeding
from cprjob_bench.documents import Failure, Saving
from cprjob_bench.roles.differences import Sums, row_shapes
from cprjob_bench.roles.eager import EagerConnection, EagerLink, EagerRedundancy, EagerServer, Rounds
from cprjob_bench.roles.priority import (
    SavingShards,
    Schedule,
    changed_rows,
    failing_shards,
    is_priority_step,
    slots_of_steps,
)
from cprjob_bench.roles.single import train
from support import shard_job, shard_thread
from support.exchanges import WAIT_S, follow
from support.local_job import small_job
from support.model import train_alone
from support.row_optimizers import mixed

# --- saves by a strategy

STEPS, BATCH, SHARDS = 40, 50, 3
FAILURES = (Failure((0, 2), 0.4), Failure((2,), 0.45), Failure((1,), 0.9))


@pytest.fixture
def job(tmp_path: Path) -> JobSpec:
    return small_job(tmp_path, samples=STEPS * BATCH, shards=SHARDS, batch_size=BATCH)


def schedule_of(job: JobSpec, saving: Saving) -> Schedule:
    dataset = open_dataset(job.data, job.model, files_of(job))
    return Schedule.of(saving, BatchOrder.of(job.data, dataset.layout), dataset, Placement.of(job.model, job.shards))


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


def test_schedule_gives_a_strategy_what_full_writes_more(job: JobSpec) -> None:
    assert schedule_of(job, Saving("Full", 0.25, 2, 0.2, ())) == Schedule(anchor_steps=10)
    found = schedule_of(job, Saving("MFU", 0.25, 2, 0.2, ()))
    assert (found.anchor_steps, found.priority_steps) == (20, 2)
    dataset = open_dataset(job.data, job.model, files_of(job))
    updates = list(slots_of_steps(dataset, BatchOrder.of(job.data, dataset.layout), Placement.of(job.model, 1)))
    full, anchored = changed_rows(iter(updates), sum(table.rows for table in job.model.tables), (10, 20))
    assert found.shard_rows == (full - anchored) // (18 * SHARDS) > 0, "18 priority saves: none at steps 20 and 40"
    assert [step for step in range(1, 21) if is_priority_step(step, 3, 6)] == [3, 9, 15]


@given(
    updates=st.lists(st.sets(st.integers(0, 9), max_size=5), max_size=30),
    windows=st.lists(st.integers(1, 12), min_size=1, max_size=3),
)
def test_changed_rows_count_once_in_each_window(updates: list[set[int]], windows: list[int]) -> None:
    found = changed_rows((np.array(sorted(slots), np.int64) for slots in updates), 10, windows)
    for window, total in zip(windows, found, strict=True):
        complete = range(0, len(updates) - window + 1, window)
        assert total == sum(len(set().union(*updates[first : first + window])) for first in complete)


@pytest.mark.parametrize("changes", [{"interval": 0.001}, {"fraction": 0.01}, {"anchors": 1}, {"interval": 1.5}])
def test_saving_that_does_not_fit_its_run_is_refused(job: JobSpec, changes: dict[str, Any]) -> None:
    with pytest.raises(BadSpecError, match="does not fit a run of 40 steps"):
        schedule_of(job, replace(Saving("MFU", 0.25, 2, 0.2, ()), **changes))


# --- eager parity, as ECRec keeps it


class EagerThread(shard_thread.ShardThread):
    @property
    def eager(self) -> EagerRedundancy:
        return cast(EagerRedundancy, self.redundancy)


@pytest.fixture
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[EagerThread]]:
    monkeypatch.setattr(shard_thread, "Redundancy", EagerRedundancy)
    monkeypatch.setattr(shard_thread, "Server", EagerServer)
    monkeypatch.setattr(server, "Connection", EagerConnection)
    monkeypatch.setattr(loop, "Link", EagerLink)
    monkeypatch.setattr(EagerLink, "rounds", Rounds())
    job = replace(shard_job.small_job(tmp_path, shards=SHARDS, rows=(90, 37)), parity_shards=2)
    made = [EagerThread(job, index) for index in range(SHARDS)]
    yield made
    for shard in made:
        shard.close()


def test_eager_parity_sums_the_differences_of_all_members(shards: list[EagerThread]) -> None:
    job, rng = shards[0].job, np.random.default_rng(1)
    placement, ring = Placement.of(job.model, SHARDS), Ring(SHARDS, 2)
    peers = tuple(shard.peer for shard in shards)
    for shard in shards:
        shard.do(lambda shard=shard: shard.eager.follow(shard_job.shard_roster(index=shard.index, shards=peers)))
    exchange = Exchange(job, 0, 1, shard_job.KEY, 1000)
    try:
        follow(exchange, *shards)
        exchange.wait_ready(WAIT_S)
        for step in range(1, 7):
            ids = np.stack([rng.integers(0, 90, 30), rng.integers(0, 37, 30)], axis=1)
            unique = find_access(placement, ids).unique
            exchange.push(step, unique, np.full((len(unique), 4), step, np.float32), 0, WAIT_S)
        exchange.settle(WAIT_S)
    finally:
        exchange.close()
    parts = Parts.of(placement, 2)
    for holder in shards:
        (rows, state), expected = holder.eager.sums.sums[0], Sums(row_shapes(holder.arena, parts)).sums[0]
        for part, member in enumerate(ring.members(holder.index)):
            first, end = parts.span(part, 0, len(shards[member].arena))
            fresh = Arena.empty(job, *placement.sizes(member))
            fresh.seed(placement, member, Seeding.of(job.model, job.data.seed))
            expected[0][: end - first] += (shards[member].arena.rows - fresh.rows)[first:end]
            expected[1][: end - first] += shards[member].arena.state[first:end]
        assert np.abs(expected[0]).max() > 0
        np.testing.assert_allclose(rows, expected[0], rtol=0, atol=1e-5)
        np.testing.assert_allclose(state, expected[1], rtol=1e-5, atol=1e-5)


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
