"""Training without a shard: lookups read first values, pushes are dropped and counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from cpr_contract.roster import Allowance, Peer
from cpr_contract.spec import JobSpec
from cpr_trainer.embedding.arena import Arena
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.embedding.segments import Seeding
from cpr_trainer.embedding.unique_rows import UniqueRows
from cpr_trainer.exchange import Exchange, ShardsUnavailableError
from support.exchanges import WAIT_S, Pair, push, wait_for
from support.shard_job import trainer_roster
from support.shard_thread import ShardThread

BATCH = 10  # of the job


def allow(exchange: Exchange, *peers: Peer, until_step: int, roster: int = 2) -> None:
    """Let steps up to `until_step` skip shard 1."""
    followed = trainer_roster(peers, roster=roster)
    exchange.follow(replace(followed, allowances=(Allowance(1, until_step * BATCH + BATCH - 1),)))


def lose(exchange: Exchange, pair: Pair, *, until_step: int) -> None:
    """Shard 1 is gone, and its successor has no address yet."""
    allow(exchange, pair[0].peer, Peer(1, 2, "", 0), until_step=until_step)


def first_values(job: JobSpec, index: int, rows: UniqueRows) -> np.ndarray:
    placement = Placement.of(job.model, 2)
    arena = Arena.empty(job, placement.size(index))
    arena.seed(placement, index, Seeding.of(job.model, job.data.seed))
    return arena.rows[placement.slots_on(index, rows.numbers[rows.on_shard(index)])]


def lost(shard: ShardThread) -> tuple[tuple[tuple[int, int], ...], int]:
    progress = shard.progress
    return progress.losses.lost, progress.row_updates.lost


def test_rows_of_a_skipped_shard_have_their_first_values(
    job: JobSpec, exchange: Exchange, pair: Pair, rows: UniqueRows
) -> None:
    push(exchange, rows, 1)
    exchange.settle(WAIT_S)
    changed = exchange.lookup(2, rows).result(WAIT_S).copy()
    lose(exchange, pair, until_step=5)
    found = exchange.lookup(2, rows).result(WAIT_S)
    np.testing.assert_array_equal(found[rows.on_shard(1)], first_values(job, 1, rows))
    np.testing.assert_array_equal(found[rows.on_shard(0)], changed[rows.on_shard(0)])
    assert (found[rows.on_shard(1)] != changed[rows.on_shard(1)]).any()


def test_an_allowance_ends_with_its_last_whole_step(exchange: Exchange, pair: Pair, rows: UniqueRows) -> None:
    lose(exchange, pair, until_step=2)
    for step in (1, 2):
        assert exchange.unavailable(step) == ()
        exchange.lookup(step, rows).result(WAIT_S)
        push(exchange, rows, step)
        assert exchange.was_skipped(step)
    assert exchange.unavailable(3) == (1,)
    with pytest.raises(ShardsUnavailableError):
        exchange.lookup(3, rows).result(WAIT_S)
    assert exchange.was_skipped(2)
    assert not exchange.was_skipped(3)


def test_loss_of_a_skipped_shard_ends_at_its_next_push(
    exchange: Exchange, pair: Pair, serve: Callable[..., ShardThread], rows: UniqueRows
) -> None:
    """Steps 3 and 4 are unacknowledged when it dies, and are dropped as well: its loss has no gap."""
    on_shard = rows.bounds[2] - rows.bounds[1]
    push(exchange, rows, 1)
    push(exchange, rows, 2)
    exchange.settle(WAIT_S)
    pair[1].freeze()
    push(exchange, rows, 3)
    push(exchange, rows, 4)
    lose(exchange, pair, until_step=50)
    for step in (5, 6):
        exchange.lookup(step, rows).result(WAIT_S)
        push(exchange, rows, step)
    successor = serve(1, 2)
    successor.do(lambda: successor.ready(applied=1, pushed=on_shard))
    allow(exchange, pair[0].peer, successor.peer, until_step=50, roster=3)
    exchange.wait_ready(WAIT_S)
    exchange.lookup(7, rows).result(WAIT_S)
    push(exchange, rows, 7)
    exchange.settle(WAIT_S)
    assert not exchange.was_skipped(7)
    assert lost(successor) == (((1 * BATCH, 6 * BATCH),), 5 * on_shard)
    assert lost(pair[0])[1] == 0
    pair[1].thaw()


def test_a_step_that_began_without_a_shard_ends_without_it(
    exchange: Exchange, pair: Pair, serve: Callable[..., ShardThread], rows: UniqueRows
) -> None:
    """Its push, and that of the step before, are dropped although the shard is back."""
    exchange.lookup(1, rows).result(WAIT_S)
    lose(exchange, pair, until_step=50)
    exchange.lookup(2, rows).result(WAIT_S)  # asked ahead, while step 1 is computed
    successor = serve(1, 2)
    allow(exchange, pair[0].peer, successor.peer, until_step=50, roster=3)
    exchange.wait_ready(WAIT_S)
    for step in (1, 2, 3):
        push(exchange, rows, step)
    exchange.settle(WAIT_S)
    assert lost(successor)[0] == ((0, 2 * BATCH),)


def test_step_that_began_without_a_shard_outlives_its_allowance(
    exchange: Exchange, pair: Pair, rows: UniqueRows
) -> None:
    lose(exchange, pair, until_step=2)
    exchange.lookup(2, rows).result(WAIT_S)
    exchange.follow(trainer_roster((pair[0].peer, Peer(1, 2, "", 0)), roster=3))
    assert exchange.unavailable(2) == ()
    assert exchange.unavailable(3) == (1,)


def test_returned_shard_is_waited_for(
    exchange: Exchange, pair: Pair, serve: Callable[..., ShardThread], rows: UniqueRows
) -> None:
    """The operator may have settled what it lost: from there on nothing may be missing."""
    lose(exchange, pair, until_step=50)
    successor = serve(1, 2)
    allow(exchange, pair[0].peer, successor.peer, until_step=50, roster=3)
    exchange.wait_ready(WAIT_S)
    push(exchange, rows, 1)
    exchange.settle(WAIT_S)

    def stop() -> None:
        successor.server.close()
        successor.frozen = True

    successor.do(stop)
    wait_for(lambda: exchange.unavailable() == (1,))
    assert exchange.unavailable(2) == (1,)
    allow(exchange, pair[0].peer, Peer(1, 3, "", 0), until_step=50, roster=4)
    assert exchange.unavailable(2) == ()


def test_skipped_step_can_be_pushed_again_at_the_end(
    exchange: Exchange, pair: Pair, serve: Callable[..., ShardThread], rows: UniqueRows
) -> None:
    """The last cut needs the last steps of all shards."""
    on_shard = rows.bounds[2] - rows.bounds[1]
    lose(exchange, pair, until_step=50)
    for step in (1, 2, 3):
        exchange.lookup(step, rows).result(WAIT_S)
        push(exchange, rows, step)
    successor = serve(1, 2)
    allow(exchange, pair[0].peer, successor.peer, until_step=50, roster=3)
    exchange.wait_ready(WAIT_S)
    exchange.uncount(3, rows)
    push(exchange, rows, 3)
    exchange.settle(WAIT_S)
    assert lost(successor) == (((0, 2 * BATCH),), 2 * on_shard)
