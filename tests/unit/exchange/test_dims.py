"""Lookups and pushes where tables have several dims and precisions, over two shards that work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cpr_contract.choices import Precision
from cpr_contract.spec import JobSpec
from cpr_trainer.embedding.access import find_access
from cpr_trainer.embedding.bfloat16 import narrow
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.embedding.segments import initial_rows
from cpr_trainer.embedding.unique_rows import UniqueRows
from cpr_trainer.exchange import Exchange
from support.exchanges import WAIT_S, follow
from support.row_dims import with_dims, with_precisions
from support.shard_job import KEY, small_job
from support.shard_thread import ShardThread

ROWS, DIMS = (50, 30, 12), (4, 2, 7)
Pair = tuple[ShardThread, ShardThread]


def job_of(precision: Precision, *of_tables: Precision) -> JobSpec:
    job = with_precisions(with_dims(small_job(Path("unused"), shards=2, rows=ROWS), *DIMS), *of_tables)
    sgd = replace(job.model.sparse_optimizer, kind="SGD")
    return replace(job, precision=precision, model=replace(job.model, sparse_optimizer=sgd))


@pytest.fixture(params=[("fp32", "fp32", "fp32", "bf16"), ("bf16", "fp32", "fp32", "bf16"), ("fp32", "bf16")])
def job(request: pytest.FixtureRequest) -> JobSpec:
    return job_of(*request.param)


@pytest.fixture
def pair(job: JobSpec) -> Iterator[Pair]:
    shards = ShardThread(job, 0), ShardThread(job, 1)
    yield shards
    for shard in shards:
        shard.close()


@pytest.fixture
def exchange(job: JobSpec, pair: Pair) -> Iterator[Exchange]:
    exchange = Exchange(job, 0, 1, KEY, 1000)
    follow(exchange, *pair)
    exchange.wait_ready(WAIT_S)
    yield exchange
    exchange.close()


def rows_of(job: JobSpec, *bags: tuple[int, ...]) -> UniqueRows:
    return find_access(Placement.of(job.model, 2), np.array(bags)).unique


def first_values(job: JobSpec, rows: UniqueRows) -> tuple[np.ndarray, ...]:
    """Return the packed values of each band, in the order of its rows."""
    placement, found = Placement.of(job.model, 2), []
    for band in range(3):
        tables, mine = placement.tables_of(rows.of_band(rows.numbers, band))
        values = np.concatenate(
            [initial_rows(job.model, 7, t, np.array([r])) for t, r in zip(tables, mine, strict=True)]
        )
        found.append(narrow(values) if "bf16" in {job.precision, job.model.tables[0].precision} else values)
    return tuple(found)


BAGS = ((3, 7, 1), (49, 29, 11), (0, 7, 5), (17, 0, 1), (21, 13, 2))


def test_rows_of_all_dims_come_from_the_shards_that_hold_them(job: JobSpec, exchange: Exchange) -> None:
    rows = rows_of(job, *BAGS)
    assert all(len(rows.numbers[cell]) for band in (0, 1) for cell in rows.cells(band)), "on both shards"
    found = exchange.by_band(rows, exchange.lookup(1, rows).result(WAIT_S))
    for values, expected in zip(found, first_values(job, rows), strict=True):
        assert np.array_equal(values, expected)


def test_a_push_changes_each_row_by_its_own_gradient(job: JobSpec, exchange: Exchange, pair: Pair) -> None:
    rows = rows_of(job, *BAGS)
    placement = Placement.of(job.model, 2)
    sizes = [len(rows.of_band(rows.numbers, band)) for band in range(3)]
    # Different gradients that bfloat16 holds exactly.
    gradients = tuple(
        np.arange(size * dim, dtype=np.float32).reshape(size, dim) + 64 * band
        for band, (size, dim) in enumerate(zip(sizes, DIMS, strict=True))
    )
    exchange.push(1, rows, gradients, 0, WAIT_S)
    exchange.settle(WAIT_S)
    touched = set(rows.numbers.tolist())
    by_number = {
        number: gradient
        for band in range(3)
        for number, gradient in zip(rows.of_band(rows.numbers, band).tolist(), gradients[band], strict=True)
    }
    for shard in pair:
        for chunk in placement.rows_of(shard.index):
            for slot, (table, row) in enumerate(zip(chunk.tables.tolist(), chunk.rows.tolist(), strict=True)):
                number = int(placement.offsets[table]) + row
                segment = shard.arena.segments[placement.band_of[table]]
                expected = initial_rows(job.model, 7, table, np.array([row]))[0]
                if number in touched:
                    expected -= np.float32(0.1) * by_number[number]
                (found,) = segment.read(np.array([chunk.first_slot + slot - segment.first]))
                rounding = 0.0 if segment.precision == "fp32" else 2**-7
                np.testing.assert_allclose(found, expected, rtol=rounding, atol=1e-5)
