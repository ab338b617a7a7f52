"""Two ranks push integers to two shards of real processes, killed again and again: no push is lost or doubled.

SGD with a rate of 1 and integer gradients: as long as values stay between 2^23 and 2^24, where float32 has whole
numbers alone, sums are exact in any order. A first push that is that large rounds the rows' first values away.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from cpr_contract.reports import ShardReport
from cpr_contract.spec import JobSpec
from cpr_trainer.access import find_access
from cpr_trainer.exchange import Exchange, ShardsAwayError
from cpr_trainer.placement import Placement
from cpr_trainer.rows import UniqueRows
from support.shard_job import KEY, ShardProcess, shard_roster, small_job, trainer_roster

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]
WAIT_S, DIM, STEPS, CUT_EVERY = 60.0, 16, 90, 25
LARGE = 3 << 22
SHARDS = (0, 1)


class Ranks:
    """Two ranks in lockstep, and the shards that they push to."""

    def __init__(self, folder: Path, job: JobSpec) -> None:
        self.job, self.folder = job, folder
        self.roster = 0
        placement = Placement.of(job.model, job.shards)
        every = np.stack([np.arange(50), np.arange(50) % 30], axis=1)
        self.rows = find_access(placement, every).unique
        self.shards = [self._start(index, 1) for index in SHARDS]
        self.ranks = [Exchange(job, rank, 1, KEY, job.data.samples or 0) for rank in (0, 1)]

    def _start(self, index: int, incarnation: int) -> ShardProcess:
        told = shard_roster(index=index, incarnation=incarnation, newest_incarnation=incarnation, trainers=2)
        return ShardProcess.start(self.folder, self.job, told)

    def kill(self, *shards: int) -> None:
        for index in shards:
            self.shards[index].kill()
        for index in shards:
            self.shards[index] = self._start(index, self.shards[index].peer.incarnation + 1)

    def follow(self, *ranks: int, wait: bool = True) -> None:
        """Let ranks know the present shards, and wait until these take their pushes."""
        self.roster += 1
        told = trainer_roster(tuple(shard.peer for shard in self.shards), roster=self.roster)
        for rank in ranks:
            self.ranks[rank].follow(told)
        for rank in ranks if wait else ():
            self.ranks[rank].wait_ready(WAIT_S)

    def push(self, rank: int, step: int, rows: UniqueRows, gradients: np.ndarray, cut_step: int) -> None:
        """Push a step, whatever dies meanwhile: the main thread publishes the rosters."""
        while True:
            try:
                self.ranks[rank].push(step, rows, gradients, cut_step, WAIT_S)
            except ShardsAwayError:
                with suppress(ShardsAwayError):
                    self.ranks[rank].wait_ready(0.1)
            else:
                return

    def values(self, step: int) -> np.ndarray:
        found: np.ndarray = self.ranks[0].lookup(step, self.rows).result(WAIT_S)
        return found

    def reports(self) -> list[ShardReport]:
        return [shard.wait_until(lambda report: report.resumed_samples is not None) for shard in self.shards]

    def close(self) -> None:
        for rank in self.ranks:
            rank.close()
        for shard in self.shards:
            shard.kill()


@contextmanager
def running(folder: Path, kind: Literal["SGD", "RowWiseAdagrad"], rate: float) -> Iterator[Ranks]:
    job = small_job(folder, shards=2, trainers=2, dim=DIM)
    optimizer = replace(job.model.sparse_optimizer, kind=kind, learning_rate=rate)
    job = replace(job, model=replace(job.model, sparse_optimizer=optimizer), replay_bytes=8 << 20)
    ranks = Ranks(folder, job)
    try:
        ranks.follow(0, 1)
        yield ranks
    finally:
        ranks.close()


def pushed(rank: int, step: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Which rows a step changes, and its gradients of all rows."""
    if step == 1:
        return np.ones(rows, np.bool_), np.full((rows, DIM), LARGE if rank == 0 else 0, np.float32)
    random_numbers = np.random.default_rng((rank, step))
    return random_numbers.random(rows) < 0.5, random_numbers.integers(-99, 99, (rows, DIM)).astype(np.float32)


def train(job: Ranks, rank: int, steps: range, together: threading.Barrier) -> None:
    for step in steps:
        together.wait()
        taken, gradients = pushed(rank, step, len(job.rows))
        job.push(rank, step, job.rows.select(taken), gradients[taken], -(-step // CUT_EVERY) * CUT_EVERY)


def strike(job: Ranks, rng: random.Random) -> None:
    """Kill shards, and some once more while they are sent pushes again."""
    job.kill(*rng.choice(((0,), (1,), (0, 1))))
    if rng.random() < 0.7:
        job.follow(0, 1, wait=False)
        job.shards[0].wait_ready()
        job.kill(0)
    job.follow(0, 1)


@pytest.mark.parametrize("seed", range(2))
def test_sums_are_those_of_all_pushes_however_often_shards_die(tmp_path: Path, seed: int) -> None:
    """Shards die alone and together, and again before they have caught up; cuts are saved in between."""
    rng = random.Random(seed)
    with running(tmp_path, "SGD", 1.0) as job:
        for rank in (0, 1):  # one after the other, so that the large numbers come first
            train(job, rank, range(1, 2), threading.Barrier(1))
            job.ranks[rank].settle(WAIT_S)
        together = threading.Barrier(2, timeout=WAIT_S)
        steps = range(2, STEPS + 1)
        threads = [threading.Thread(target=train, args=(job, rank, steps, together)) for rank in (0, 1)]
        for thread in threads:
            thread.start()
        for _ in range(4):
            threads[0].join(rng.uniform(0.0, 0.4))
            strike(job, rng)
        for thread in threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()
        for each in job.ranks:
            each.settle(WAIT_S)
        found, reports = job.values(STEPS + 1), job.reports()
        expected = np.zeros((len(job.rows), DIM))
        for rank, step in product((0, 1), range(1, STEPS + 1)):
            taken, gradients = pushed(rank, step, len(job.rows))
            expected[taken] -= gradients[taken]
    assert np.array_equal(found, expected.astype(np.float32))
    assert [report.lost for report in reports] == [(), ()]
    assert [report.row_updates.lost for report in reports if report.row_updates] == [0, 0]


def test_shards_get_back_bit_for_bit_what_they_had(tmp_path: Path) -> None:
    """By an optimizer to which the order of two ranks matters: each step they push in another one."""
    rng = random.Random(0)
    with running(tmp_path, "RowWiseAdagrad", 0.1) as job:
        for step in range(1, 41):
            for rank in rng.sample((0, 1), 2):
                gradients = np.random.default_rng((rank, step)).standard_normal((len(job.rows), DIM), np.float32)
                job.push(rank, step, job.rows, gradients, 20)
                job.ranks[rank].settle(WAIT_S)
        before = job.values(41)
        job.kill(0, 1)
        job.follow(1, 0)
        job.kill(1)
        job.follow(0, 1)
        assert np.array_equal(job.values(41), before)
        reports = job.reports()
        assert [(report.lost, report.replayed_in_order) for report in reports] == [((), True)] * 2
        assert all(report.replayed_samples > 0 for report in reports)
