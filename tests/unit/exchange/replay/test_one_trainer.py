"""Pushes that one trainer keeps for shards that are replaced."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from cpr_contract.manifests import RowUpdates
from cpr_trainer.embedding.unique_rows import UniqueRows
from cpr_trainer.exchange import Exchange, ShardsUnavailableError
from support.exchanges import WAIT_S, wait_for
from support.replays import BATCH, Start, join, of_one, push, save, sums


def test_successor_gets_all_pushes_that_no_save_holds(
    exchanges: Callable[..., Exchange], begin: Start, rows: UniqueRows
) -> None:
    exchange, shard = exchanges(), begin()
    join(exchange, shard)
    push(exchange, rows, *range(1, 11))
    exchange.settle(WAIT_S)
    saved = save(shard)
    push(exchange, rows, *range(11, 31))
    exchange.settle(WAIT_S)
    shard.close()
    join(exchange, successor := begin(2, saved), roster=2)
    found = exchange.lookup(31, rows).result(WAIT_S)
    assert np.array_equal(found, sums(rows, *of_one(30)))
    progress = successor.progress
    assert progress.resumed
    assert (progress.losses.lost, progress.row_updates) == ((), RowUpdates((30 * len(rows),)))
    assert progress.replayed == 20 * BATCH
    assert progress.replay_s is not None


def test_pushes_held_by_a_save_are_dropped(exchanges: Callable[..., Exchange], begin: Start, rows: UniqueRows) -> None:
    exchange, shard = exchanges(), begin()
    join(exchange, shard)
    assert exchange.forgotten() == (-1,)
    push(exchange, rows, *range(1, 6))
    exchange.settle(WAIT_S)
    before = exchange.replay_fill()
    assert exchange.forgotten() == (0,)
    save(shard)
    wait_for(lambda: exchange.forgotten() == (5 * BATCH,))
    assert exchange.replay_fill() < before


def test_job_with_parity_drops_only_pushes_held_by_a_save_and_parity(
    exchanges: Callable[..., Exchange], begin: Start, rows: UniqueRows
) -> None:
    """A shard that reports no parity may be rebuilt all the same: its holders may have it, and it did not see that."""
    exchange, shard = exchanges(parity_shards=1), begin()
    join(exchange, shard)
    push(exchange, rows, *range(1, 6))
    exchange.settle(WAIT_S)
    save(shard)
    found = []
    for step, protected in enumerate((-1, 3, -1, 9), start=6):
        shard.service.protected_step = protected
        push(exchange, rows, step)
        exchange.settle(WAIT_S)
        found.append(exchange.forgotten()[0] // BATCH)
    assert found == [0, 3, 3, 5]


@pytest.mark.parametrize(("spill_bytes", "last"), [(0, 60), (48 << 10, 96)], ids=["memory", "disk"])
def test_full_replay_memory_drops_the_oldest_pushes_and_reports_that_before(
    exchanges: Callable[..., Exchange], begin: Start, rows: UniqueRows, spill_bytes: int, last: int
) -> None:
    exchange, shard = exchanges(replay_bytes=24 << 10, spill_bytes=spill_bytes), begin()
    join(exchange, shard)
    announced = 0
    for step in range(1, last):
        push(exchange, rows, step)
        announced = exchange.forgotten()[0] // BATCH
    exchange.settle(WAIT_S)
    assert 0 < announced < last - 1
    shard.close()
    join(exchange, successor := begin(2), roster=2)
    push(exchange, rows, last)
    exchange.settle(WAIT_S)
    progress = successor.progress
    (lost,) = progress.losses.lost
    assert lost[0] == 0
    assert lost[1] // BATCH <= announced, "no more than announced"
    assert spill_bytes or announced - 3 <= lost[1] // BATCH, "and about that"
    rest = [(0, step) for step in range(lost[1] // BATCH + 1, last + 1)]
    assert np.array_equal(exchange.lookup(last + 1, rows).result(WAIT_S), sums(rows, *rest))


def test_pushes_beyond_memory_are_spilled_and_replayed_in_order(
    exchanges: Callable[..., Exchange], begin: Start, rows: UniqueRows
) -> None:
    """A shard drops a push that comes after a later one, so the sums show the order."""
    exchange, shard = exchanges(replay_bytes=24 << 10, spill_bytes=1 << 20), begin()
    join(exchange, shard)
    push(exchange, rows, *range(1, 31))
    exchange.settle(WAIT_S)
    saved = save(shard)
    push(exchange, rows, *range(31, 101))
    exchange.settle(WAIT_S)
    assert exchange.forgotten() == (30 * BATCH,)
    shard.close()
    join(exchange, again := begin(2, saved), roster=2)
    assert np.array_equal(exchange.lookup(101, rows).result(WAIT_S), sums(rows, *of_one(100)))
    again.close()
    join(exchange, successor := begin(3, saved), roster=3)
    assert np.array_equal(exchange.lookup(101, rows).result(WAIT_S), sums(rows, *of_one(100)))
    progress = successor.progress
    assert (progress.losses.lost, progress.replayed) == ((), 70 * BATCH)


def test_no_push_is_dropped_while_an_unavailable_shard_may_need_it(
    exchanges: Callable[..., Exchange], begin: Start, rows: UniqueRows
) -> None:
    exchange, shard = exchanges(replay_bytes=12 << 10), begin()
    join(exchange, shard)
    push(exchange, rows, *range(1, 20))
    exchange.settle(WAIT_S)
    announced = exchange.forgotten()
    shard.close()
    wait_for(lambda: exchange.unavailable() == (0,))
    with pytest.raises(ShardsUnavailableError):
        push(exchange, rows, *range(20, 22))
    assert exchange.forgotten() == announced


def test_push_beyond_memory_and_disk_is_retained_until_acknowledged(
    exchanges: Callable[..., Exchange], begin: Start, rows: UniqueRows
) -> None:
    exchange, shard = exchanges(replay_bytes=256), begin()
    join(exchange, shard)
    push(exchange, rows, *range(1, 6))
    exchange.settle(WAIT_S)
    assert exchange.forgotten() == (-1,)
    assert np.array_equal(exchange.lookup(6, rows).result(WAIT_S), sums(rows, *of_one(5)))
    del shard
