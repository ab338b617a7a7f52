"""A real shard whose saves are limited to less than training changes meanwhile: they are committed all the same."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cpr_contract.spec import JobSpec
from cpr_trainer.access import find_access
from cpr_trainer.exchange import Exchange
from cpr_trainer.placement import Placement
from cpr_trainer.rows import UniqueRows
from cpr_trainer.tables import arena
from support.shard_job import KEY, PATIENCE_S, ShardProcess, shard_roster, small_job, trainer_roster

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]

#: 20 MiB, of which the log takes less than half; in the save's time at the limit all of it changes several times.
ROWS, DIM, LIMIT = 20_000, 256, 1 << 20
#: Rows that a step changes, none of them twice until all have; and the least time between two steps.
STEP_ROWS, PACE_S = 100, 0.02
SAMPLES, CUT = 1_000_000, 1


@contextmanager
def shard(folder: Path, job: JobSpec, incarnation: int) -> Iterator[ShardProcess]:
    roster = shard_roster(incarnation=incarnation, newest_incarnation=incarnation)
    process = ShardProcess.start(folder, job, roster)
    try:
        process.wait_ready()
        yield process
    finally:
        process.kill()


@contextmanager
def trainer(job: JobSpec, process: ShardProcess, incarnation: int) -> Iterator[Exchange]:
    with closing(Exchange(job, 0, incarnation, KEY, SAMPLES)) as exchange:
        exchange.follow(trainer_roster((process.peer,)))
        exchange.wait_ready(PATIENCE_S)
        yield exchange


def push(exchange: Exchange, step: int, rows: UniqueRows, cut: int) -> None:
    exchange.push(step, rows, np.full((len(rows), DIM), step, np.float32), cut, PATIENCE_S)
    exchange.settle(PATIENCE_S)


def test_a_save_that_the_limit_would_let_training_outrun_is_committed(tmp_path: Path) -> None:
    job = small_job(tmp_path, rows=(ROWS,), dim=DIM)
    job = replace(job, snapshots=replace(job.snapshots, max_bytes_per_s=LIMIT))
    placement = Placement.of(job.model, 1)
    every = find_access(placement, np.arange(ROWS)[:, np.newaxis]).unique
    some = [every.select(np.arange(ROWS) % (ROWS // STEP_ROWS) == turn) for turn in range(ROWS // STEP_ROWS)]
    assert 2 * arena._SMALLEST_LOG_BYTES < ROWS * DIM * 4
    with shard(tmp_path, job, 1) as process, trainer(job, process, 1) as exchange:
        push(exchange, CUT, every, CUT)
        at_the_cut = exchange.lookup(CUT + 1, every).result(PATIENCE_S)
        step = CUT
        while exchange.saved()[0].step != CUT:
            assert exchange.saved()[0].given_up_step == 0
            step += 1
            push(exchange, step, some[step % len(some)], 0)
            time.sleep(PACE_S)
    with shard(tmp_path, job, 2) as process, trainer(job, process, 2) as exchange:
        assert np.array_equal(exchange.lookup(step + 1, every).result(PATIENCE_S), at_the_cut)
