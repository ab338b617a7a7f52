"""The trainer's side against shards on threads that come, go, pause and lie."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpr_contract.roster import Peer
from cpr_contract.spec import JobSpec
from cpr_contract.trace import TracedStep
from cpr_operator.cluster.local.ports import free_block
from cpr_trainer.access import find_access
from cpr_trainer.arrays import Ints
from cpr_trainer.exchange import Exchange, PendingLookup, ShardsAwayError
from cpr_trainer.exchange.bfloat16 import narrow, widen
from cpr_trainer.exchange.frames import Header, Operation
from cpr_trainer.placement import Placement
from cpr_trainer.rows import UniqueRows
from cpr_trainer.runtime import Trace
from cpr_trainer.tables.seeding import initial_rows
from support.shard_job import HOST, KEY, small_job, trainer_roster
from support.shard_thread import ShardThread

WAIT_S = 20.0


@pytest.fixture
def job() -> JobSpec:
    return small_job(Path("unused"), shards=2)


@pytest.fixture
def serve(job: JobSpec) -> Iterator[Callable[..., ShardThread]]:
    shards: list[ShardThread] = []

    def start(*arguments: Any, **options: Any) -> ShardThread:
        shards.append(ShardThread(job, *arguments, **options))
        return shards[-1]

    yield start
    for shard in shards:
        shard.close()


@pytest.fixture
def exchange(job: JobSpec) -> Iterator[Exchange]:
    exchange = Exchange(job, 0, 1, KEY, 1000)
    yield exchange
    exchange.close()


@pytest.fixture
def rows(job: JobSpec) -> UniqueRows:
    every = np.stack([np.arange(50), np.arange(50) % 30], axis=1)
    return find_access(Placement.of(job.model, 2), every).unique


@pytest.fixture
def pair(serve: Callable[..., ShardThread], exchange: Exchange) -> tuple[ShardThread, ShardThread]:
    """Two shards, and the exchange connected to them."""
    shards = serve(0), serve(1)
    follow(exchange, *shards)
    exchange.wait_ready(WAIT_S)
    return shards


def follow(exchange: Exchange, *shards: ShardThread, roster: int = 1, generation: int = 1) -> None:
    exchange.follow(trainer_roster(tuple(shard.peer for shard in shards), roster=roster, generation=generation))


def push(exchange: Exchange, rows: UniqueRows, step: int, cut_step: int = 0, timeout_s: float = WAIT_S) -> None:
    exchange.push(step, rows, np.ones((len(rows), 4), np.float32), cut_step, timeout_s)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


Pair = tuple[ShardThread, ShardThread]


def test_rows_come_from_the_shards_that_hold_them(
    job: JobSpec, exchange: Exchange, pair: Pair, rows: UniqueRows
) -> None:
    vectors = exchange.lookup(1, rows).result(WAIT_S)
    tables = (rows.numbers >= 50).astype(np.int64)
    for table in (0, 1):
        mine = rows.numbers[tables == table] - 50 * table
        assert np.array_equal(vectors[tables == table], initial_rows(job.model, 7, table, mine))
    assert exchange.applied() == (0, 0)
    assert exchange.away() == ()
    assert len(pair) == 2


def test_a_lookup_sees_the_push_before_it(exchange: Exchange, pair: Pair, rows: UniqueRows) -> None:
    before = exchange.lookup(1, rows).result(WAIT_S).copy()
    push(exchange, rows, 1)
    after = exchange.lookup(2, rows).result(WAIT_S)
    np.testing.assert_allclose(after, before - 0.1, rtol=1e-6, atol=1e-6)
    exchange.settle(WAIT_S)
    assert exchange.applied() == (1, 1)
    del pair


def test_in_bfloat16_vectors_travel_rounded_and_rows_stay_exact(job: JobSpec, rows: UniqueRows) -> None:
    half = replace(job, precision="bf16")
    starts = Placement.of(half.model, 2).starts

    def slots_on(shard: int) -> Ints:
        return rows.places[rows.on_shard(shard)] - starts[shard]

    shards, exchange = (ShardThread(half, 0), ShardThread(half, 1)), Exchange(half, 0, 1, KEY, 1000)
    try:
        follow(exchange, *shards)
        exchange.wait_ready(WAIT_S)
        held = np.concatenate([shard.arena.rows[slots_on(i)] for i, shard in enumerate(shards)])
        vectors = exchange.lookup(1, rows).result(WAIT_S)
        assert np.array_equal(vectors, narrow(held))
        assert not np.array_equal(widen(narrow(held)), held)
        push(exchange, rows, 1)
        exchange.settle(WAIT_S)
        np.testing.assert_allclose(shards[0].arena.rows[slots_on(0)], held[: rows.bounds[1]] - 0.1, rtol=0, atol=1e-7)
    finally:
        exchange.close()
        for shard in shards:
            shard.close()


def test_a_shard_tells_where_the_time_of_each_step_goes(
    exchange: Exchange, pair: Pair, rows: UniqueRows, tmp_path: Path
) -> None:
    trace = Trace(tmp_path / "steps")
    pair[0].do(lambda: setattr(pair[0].service, "trace", trace))
    for step in (1, 2):
        exchange.lookup(step, rows).result(WAIT_S)
        push(exchange, rows, step)
        exchange.settle(WAIT_S)
    pair[0].do(lambda: setattr(pair[0].service, "trace", Trace(None)))
    trace.close()
    first, second = map(TracedStep.of_line, (tmp_path / "steps").read_text().splitlines())
    assert (first.step, second.step) == (1, 2)
    assert second.stages_s.keys() == {"idle", "receive", "look up", "send", "apply", "rest"}
    assert sum(second.stages_s.values()) == pytest.approx(second.ended_s - first.ended_s, abs=1e-5)


def test_each_shard_gets_one_push_per_step_also_an_empty_one(exchange: Exchange, pair: Pair, rows: UniqueRows) -> None:
    only_first = rows.select(np.arange(len(rows)) < rows.bounds[1])
    push(exchange, only_first, 1)
    exchange.settle(WAIT_S)
    assert exchange.applied() == (1, 1)
    assert not pair[1].service._metrics.rows_changed._value.get()


def test_before_a_roster_with_addresses_all_shards_are_away(exchange: Exchange, rows: UniqueRows) -> None:
    exchange.follow(trainer_roster((Peer(0, 1, "", 0), Peer(1, 1, "", 0))))
    assert exchange.away() == (0, 1)
    assert exchange.silent() == ()
    with pytest.raises(ShardsAwayError) as caught:
        exchange.lookup(1, rows).result(WAIT_S)
    assert caught.value.shards == (0, 1)


def is_settled(exchange: Exchange) -> bool:
    try:
        exchange.settle(WAIT_S)
    except ShardsAwayError:
        return False
    return True


def test_a_broken_connection_is_made_anew_and_pushes_are_sent_again(
    exchange: Exchange, pair: Pair, rows: UniqueRows
) -> None:
    before = exchange.lookup(1, rows).result(WAIT_S).copy()
    pair[1].freeze()
    push(exchange, rows, 1)
    push(exchange, rows, 2)
    pair[1].do(pair[1].break_connections)
    pair[1].thaw()
    wait_for(lambda: is_settled(exchange))  # whether the break is noticed before or while it waits
    after = exchange.lookup(3, rows).result(WAIT_S)
    expected = before - 0.1 - 0.1 / 2**0.5  # Adagrad: the second step is smaller
    np.testing.assert_allclose(after, expected, rtol=1e-6, atol=1e-6)


def test_the_window_bounds_what_is_not_acknowledged(exchange: Exchange, pair: Pair, rows: UniqueRows) -> None:
    pair[1].freeze()
    push(exchange, rows, 1)
    push(exchange, rows, 2)
    with pytest.raises(TimeoutError):
        push(exchange, rows, 3, timeout_s=0.1)
    with pytest.raises(TimeoutError):
        exchange.settle(0.1)
    pair[1].thaw()
    push(exchange, rows, 3)
    exchange.settle(WAIT_S)
    assert exchange.applied() == (3, 3)


def test_a_replaced_shard_gets_what_its_predecessor_did_not_acknowledge(
    serve: Callable[..., ShardThread], exchange: Exchange, pair: Pair, rows: UniqueRows
) -> None:
    pair[1].freeze()
    push(exchange, rows, 1)
    pending = exchange.lookup(2, rows)
    successor = serve(1, 2)
    follow(exchange, pair[0], successor, roster=2)
    with pytest.raises(ShardsAwayError) as caught:
        pending.result(WAIT_S)
    assert caught.value.shards == (1,)
    exchange.wait_ready(WAIT_S)
    exchange.settle(WAIT_S)
    assert exchange.applied() == (1, 1)
    assert successor.service.progress is not None
    assert successor.service.progress.applied == (1,)


def test_another_incarnation_than_the_rosters_is_not_used(
    serve: Callable[..., ShardThread], exchange: Exchange, pair: Pair
) -> None:
    impostor = serve(1, 2)
    impostor.peer = replace(impostor.peer, incarnation=3)
    follow(exchange, pair[0], impostor, roster=2)
    with pytest.raises(ShardsAwayError):
        exchange.wait_ready(0.5)
    assert exchange.problems() == ("expected shard/1 incarnation 3, reached shard/1 incarnation 2",)


def test_a_shard_that_welcomes_without_a_proof_is_not_used(exchange: Exchange) -> None:
    with socket.create_server((HOST, 0)) as impostor:
        port = impostor.getsockname()[1]
        exchange.follow(trainer_roster((Peer(0, 1, HOST, port), Peer(1, 1, "", 0))))
        connection, _ = impostor.accept()
        with connection:
            welcome = Header(Operation.WELCOME, generation=1), Header(Operation.PONG, generation=1)
            connection.sendall(b"".join(header.pack() for header in welcome))
            wait_for(lambda: bool(exchange.problems()))
    assert exchange.problems() == ("WELCOME before the handshake was over",)
    assert exchange.away() == (0, 1)


def test_a_restoring_shard_is_away_until_it_says_otherwise(
    serve: Callable[..., ShardThread], exchange: Exchange, rows: UniqueRows
) -> None:
    one, two = serve(0), serve(1, ready=False)
    follow(exchange, one, two)
    with pytest.raises(ShardsAwayError) as caught:
        exchange.wait_ready(0.5)
    assert caught.value.shards == (1,)
    push(exchange, rows, 1)
    two.do(two.ready)
    exchange.wait_ready(WAIT_S)
    exchange.settle(WAIT_S)
    two.do(two.service.stop)
    wait_for(lambda: exchange.away() == (1,))
    with pytest.raises(ShardsAwayError):
        exchange.lookup(2, rows).result(WAIT_S)


def test_a_new_generation_drops_what_was_not_acknowledged(exchange: Exchange, pair: Pair, rows: UniqueRows) -> None:
    pair[0].freeze()
    pair[1].freeze()
    push(exchange, rows, 5)
    pending = exchange.lookup(6, rows)
    follow(exchange, *pair, roster=2, generation=2)
    with pytest.raises(ShardsAwayError):
        pending.result(WAIT_S)
    exchange.settle(WAIT_S)
    for shard in pair:
        shard.do(lambda shard=shard: shard.ready(generation=2, applied=3))  # type: ignore[misc]
        shard.thaw()
    exchange.wait_ready(WAIT_S)
    assert exchange.applied() == (3, 3)
    assert exchange.newest_roster_seen == 2
    push(exchange, rows, 4)
    exchange.settle(WAIT_S)
    assert exchange.applied() == (4, 4)


def test_a_shard_of_another_generation_is_away(exchange: Exchange, pair: Pair) -> None:
    pair[0].do(lambda: pair[0].ready(generation=2))
    wait_for(lambda: exchange.away() == (0,))
    follow(exchange, *pair, roster=2, generation=2)
    wait_for(lambda: exchange.away() == (1,))


def test_heartbeats_carry_the_cut(exchange: Exchange, pair: Pair) -> None:
    exchange.heartbeat(17)
    for shard in pair:
        progress = shard.service.progress
        assert progress is not None
        wait_for(lambda progress=progress: progress.cuts.pending == 17)  # type: ignore[misc]


def test_a_new_generation_forgets_the_cut_of_the_last(exchange: Exchange, pair: Pair, rows: UniqueRows) -> None:
    exchange.heartbeat(17)
    follow(exchange, *pair, roster=2, generation=2)
    for shard in pair:
        shard.do(lambda shard=shard: shard.ready(generation=2, applied=3))  # type: ignore[misc]
    exchange.wait_ready(WAIT_S)
    exchange.lookup(4, rows).result(WAIT_S)
    for shard in pair:
        progress = shard.service.progress
        assert progress is not None
        assert (progress.generation, progress.cuts.pending) == (2, 0)


def test_a_frozen_shard_falls_silent(serve: Callable[..., ShardThread], job: JobSpec) -> None:
    shards = serve(0), serve(1)
    exchange = Exchange(replace(job, silence_s=0.5), 0, 1, KEY, 1000)
    try:
        follow(exchange, *shards)
        exchange.wait_ready(WAIT_S)
        shards[1].freeze()
        wait_for(lambda: exchange.silent() == (1,))
        wait_for(lambda: exchange.away() == (1,))
        shards[1].thaw()
        wait_for(lambda: exchange.silent() == () and exchange.away() == ())
    finally:
        exchange.close()


def test_an_address_where_nobody_listens_falls_silent(job: JobSpec) -> None:
    exchange = Exchange(replace(job, silence_s=0.3), 0, 1, KEY, 1000)
    try:
        port = free_block(1, set(), random.Random())
        exchange.follow(trainer_roster((Peer(0, 1, "127.0.0.1", port), Peer(1, 1, "", 0))))
        wait_for(lambda: exchange.silent() == (0,))
    finally:
        exchange.close()


def test_a_lookup_may_be_waited_for_again(exchange: Exchange, pair: Pair, rows: UniqueRows) -> None:
    pair[1].freeze()
    pending: PendingLookup = exchange.lookup(1, rows)
    with pytest.raises(TimeoutError):
        pending.result(0.1)
    pair[1].thaw()
    assert pending.result(WAIT_S).shape == (len(rows), 4)


def test_closing_twice_is_fine(job: JobSpec) -> None:
    exchange = Exchange(job, 0, 1, KEY, 1000)
    exchange.close()
    exchange.close()


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
