"""Row updates are counted by rank, across replaced shards, trainers and generations."""

from __future__ import annotations

from collections.abc import Callable

from cpr_contract.spec import JobSpec
from cpr_trainer.exchange import Exchange
from cpr_trainer.rows import UniqueRows
from support.exchanges import WAIT_S, Pair, follow, push
from support.shard_job import KEY
from support.shard_thread import ShardThread


def pushed_rows(shard: ShardThread) -> tuple[tuple[int, ...], int]:
    assert shard.service.progress is not None
    updates = shard.service.progress.row_updates
    return updates.pushed, updates.lost


def test_a_trainer_tells_each_shard_how_many_row_updates_it_made_before(
    exchange: Exchange, pair: Pair, serve: Callable[..., ShardThread], rows: UniqueRows
) -> None:
    """Steps 3 to 5 die with the first incarnation of shard 1: its successor stands at step 2."""
    on_shard = rows.bounds[2] - rows.bounds[1]
    for step in (1, 2, 3, 4, 5):
        push(exchange, rows, step)
    exchange.settle(WAIT_S)
    assert pushed_rows(pair[1]) == ((5 * on_shard,), 0)
    successor = serve(1, 2)
    successor.do(lambda: successor.ready(applied=2, pushed=2 * on_shard))
    follow(exchange, pair[0], successor, roster=2)
    exchange.wait_ready(WAIT_S)
    push(exchange, rows, 6)
    exchange.settle(WAIT_S)
    assert pushed_rows(successor) == ((6 * on_shard,), 3 * on_shard)
    assert pushed_rows(pair[0])[1] == 0


def test_a_new_trainer_goes_on_from_what_the_shard_has_counted(
    job: JobSpec, exchange: Exchange, pair: Pair, rows: UniqueRows
) -> None:
    for step in (1, 2):
        push(exchange, rows, step)
    exchange.settle(WAIT_S)
    heir = Exchange(job, 0, 2, KEY, 1000)
    try:
        assert heir.counted() == ()
        follow(heir, *pair)
        heir.wait_ready(WAIT_S)
        assert heir.counted() == (2, 2)
        heir.count(3, rows)  # a step that nobody pushes again
        heir.count(3, rows)
        push(heir, rows, 4)
        heir.settle(WAIT_S)
        assert [pushed_rows(shard)[1] for shard in pair] == [rows.bounds[1], rows.bounds[2] - rows.bounds[1]]
        heir.uncount(3, rows)
        heir.uncount(4, rows)
        assert heir.counted() == (3, 3)
        push(heir, rows, 4)  # as it was: the shards drop it
        push(heir, rows, 5)
        heir.settle(WAIT_S)
        assert [pushed_rows(shard)[1] for shard in pair] == [rows.bounds[1], rows.bounds[2] - rows.bounds[1]]
    finally:
        heir.close()


def test_a_new_generation_counts_from_where_its_anchor_stands(exchange: Exchange, pair: Pair, rows: UniqueRows) -> None:
    push(exchange, rows, 1)
    exchange.settle(WAIT_S)
    for shard in pair:
        shard.do(lambda shard=shard: shard.ready(generation=2, applied=0))
    follow(exchange, *pair, roster=2, generation=2)
    assert exchange.counted() != (1, 1)
    exchange.wait_ready(WAIT_S)
    push(exchange, rows, 1)
    exchange.settle(WAIT_S)
    assert [pushed_rows(shard)[1] for shard in pair] == [0, 0]
