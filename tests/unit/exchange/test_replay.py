"""Pushes that are kept for shards that are replaced. With SGD of rate 1 and integer gradients below 2^24 sums are exact
in any order: a row is minus the sum of its gradients, and any push that is lost or doubled shows."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpr_contract.manifests import RowUpdates
from cpr_contract.reports import SaveRef
from cpr_contract.roster import Counters
from cpr_contract.spec import JobSpec
from cpr_trainer.access import find_access
from cpr_trainer.exchange import Exchange, ShardsAwayError
from cpr_trainer.exchange.ring import _Segment
from cpr_trainer.placement import Placement
from cpr_trainer.rows import UniqueRows
from cpr_trainer.shard.catch_up import CatchUp
from cpr_trainer.shard.losses import Losses
from cpr_trainer.shard.service import Progress
from support.exchanges import WAIT_S, follow, wait_for
from support.shard_job import KEY, small_job
from support.shard_thread import ShardThread

BATCH = 10
Start = Callable[..., ShardThread]


@pytest.fixture
def job() -> JobSpec:
    job = small_job(Path("unused"), trainers=1)
    sgd = replace(job.model.sparse_optimizer, kind="SGD", learning_rate=1.0)
    return replace(job, model=replace(job.model, sparse_optimizer=sgd), replay_bytes=1 << 20)


@pytest.fixture
def exchanges(job: JobSpec) -> Iterator[Callable[..., Exchange]]:
    made: list[Exchange] = []

    def make(rank: int = 0, incarnation: int = 1, **changes: Any) -> Exchange:
        made.append(Exchange(replace(job, **changes), rank, incarnation, KEY, 1000))
        return made[-1]

    yield make
    for exchange in made:
        exchange.close()


class Save:
    """What a shard held at some moment."""

    def __init__(self, shard: ShardThread) -> None:
        progress = shard.service.progress
        assert progress is not None
        self.rows, self.state = shard.arena.rows.copy(), shard.arena.state.copy()
        self.applied, self.row_updates = progress.applied, progress.row_updates
        self.ref = SaveRef("", max(progress.applied), max(progress.applied) * BATCH)


def restore(shard: ShardThread, save: Save | None = None) -> ShardThread:
    """Let a shard serve what a save holds, None for zeros; it waits for all that ranks promise."""
    trainers = shard.job.trainers

    def serve() -> None:
        applied, row_updates = (0,) * trainers, RowUpdates((0,) * trainers)
        shard.arena.rows[:] = 0 if save is None else save.rows
        shard.arena.state[:] = 0 if save is None else save.state
        if save is not None:
            applied, row_updates, shard.service.newest_save = save.applied, save.row_updates, save.ref
            shard.service.saved_steps = applied
        shard.service.counters = Counters(1, 1, 1)
        losses = Losses.restored((), trainers)
        shard.service.start(Progress(1, applied, losses, row_updates, catch_up=CatchUp.begun(trainers)))

    shard.do(serve)
    return shard


@pytest.fixture
def begin(serve: Start) -> Start:
    return lambda incarnation=1, save=None, **kw: restore(serve(0, incarnation, ready=False, **kw), save)


def join(exchange: Exchange, shard: ShardThread, roster: int = 1) -> None:
    follow(exchange, shard, roster=roster)
    exchange.wait_ready(WAIT_S)


def gradients(rows: UniqueRows, rank: int, step: int) -> np.ndarray:
    return np.random.default_rng((rank, step)).integers(-999, 999, (len(rows), 4)).astype(np.float32)


def push(exchange: Exchange, rows: UniqueRows, *steps: int, rank: int = 0) -> None:
    for step in steps:
        exchange.push(step, rows, gradients(rows, rank, step), 0, WAIT_S)


def sums(rows: UniqueRows, *pushes: tuple[int, int]) -> np.ndarray:
    found: np.ndarray = -np.sum([gradients(rows, rank, step) for rank, step in pushes], axis=0)
    return found


def save(shard: ShardThread) -> Save:
    """Save a shard, which says so with its next answers."""
    saves: list[Save] = []
    shard.do(lambda: saves.append(Save(shard)))
    shard.service.saved_steps = saves[0].applied
    shard.service.newest_save = saves[0].ref
    return saves[0]


def of_one(steps: int) -> list[tuple[int, int]]:
    return [(0, step) for step in range(1, steps + 1)]


@pytest.fixture
def rows(job: JobSpec) -> UniqueRows:
    every = np.stack([np.arange(50), np.arange(50) % 30], axis=1)
    return find_access(Placement.of(job.model, 1), every).unique


def test_a_successor_gets_all_that_no_save_holds(
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
    progress = successor.service.progress
    assert progress is not None
    assert progress.resumed
    assert (progress.losses.lost, progress.row_updates) == ((), RowUpdates((30 * len(rows),)))
    assert progress.replayed == 20 * BATCH
    assert progress.replay_s is not None


def test_a_replay_that_an_earlier_life_of_the_shard_began_is_not_timed(
    exchanges: Callable[..., Exchange], begin: Start, rows: UniqueRows
) -> None:
    exchange, shard = exchanges(), begin()
    join(exchange, shard)
    push(exchange, rows, *range(1, 21))
    exchange.settle(WAIT_S)
    shard.close()
    successor = begin(2)
    progress = successor.service.progress
    assert progress is not None
    progress.replayed = 1
    join(exchange, successor, roster=2)
    exchange.lookup(21, rows).result(WAIT_S)
    assert progress.replayed == 1 + 20 * BATCH
    assert progress.replay_s is None


def test_what_a_save_holds_is_forgotten(exchanges: Callable[..., Exchange], begin: Start, rows: UniqueRows) -> None:
    exchange, shard = exchanges(), begin()
    join(exchange, shard)
    assert exchange.forgotten() == (-1,)
    push(exchange, rows, *range(1, 6))
    exchange.settle(WAIT_S)
    before = exchange.kept()
    assert exchange.forgotten() == (0,)
    save(shard)
    wait_for(lambda: exchange.forgotten() == (5 * BATCH,))
    assert exchange.kept() < before


def test_when_there_is_no_room_the_oldest_go_and_that_is_told_before(
    exchanges: Callable[..., Exchange], begin: Start, rows: UniqueRows
) -> None:
    exchange, shard = exchanges(replay_bytes=24 << 10), begin()
    join(exchange, shard)
    told = 0
    for step in range(1, 60):
        push(exchange, rows, step)
        told = exchange.forgotten()[0] // BATCH
    exchange.settle(WAIT_S)
    assert 0 < told < 59
    shard.close()
    join(exchange, successor := begin(2), roster=2)
    push(exchange, rows, 60)
    exchange.settle(WAIT_S)
    progress = successor.service.progress
    assert progress is not None
    (lost,) = progress.losses.lost
    assert lost[0] == 0
    assert told - 3 <= lost[1] // BATCH <= told, "no more than what was told, and about that"
    rest = [(0, step) for step in range(lost[1] // BATCH + 1, 61)]
    assert np.array_equal(exchange.lookup(61, rows).result(WAIT_S), sums(rows, *rest))


def test_nothing_is_forgotten_while_a_shard_is_away_that_may_need_it(
    exchanges: Callable[..., Exchange], begin: Start, rows: UniqueRows
) -> None:
    exchange, shard = exchanges(replay_bytes=12 << 10), begin()
    join(exchange, shard)
    push(exchange, rows, *range(1, 20))
    exchange.settle(WAIT_S)
    told = exchange.forgotten()
    shard.close()
    wait_for(lambda: exchange.away() == (0,))
    with pytest.raises(ShardsAwayError):
        push(exchange, rows, *range(20, 22))
    assert exchange.forgotten() == told


def test_a_push_that_finds_no_room_at_all_is_kept_until_acknowledged(
    exchanges: Callable[..., Exchange], begin: Start, rows: UniqueRows
) -> None:
    exchange, shard = exchanges(replay_bytes=256), begin()
    join(exchange, shard)
    push(exchange, rows, *range(1, 6))
    exchange.settle(WAIT_S)
    assert exchange.forgotten() == (-1,)
    assert np.array_equal(exchange.lookup(6, rows).result(WAIT_S), sums(rows, *of_one(5)))
    del shard


def test_what_was_told_covers_all_that_goes_where_a_segment_holds_many_steps(
    job: JobSpec, exchanges: Callable[..., Exchange], begin: Start, rows: UniqueRows
) -> None:
    """Small steps after a large one: one segment that goes takes dozens of steps along."""
    exchange, shard = exchanges(replay_bytes=8 << 10), begin()
    one = find_access(Placement.of(job.model, 1), np.zeros((1, 2), np.int64)).unique
    join(exchange, shard)
    push(exchange, rows, 1)
    told = []
    for step in range(2, 100):
        told.append(exchange.forgotten()[0] // BATCH)
        push(exchange, one, step)
        exchange.settle(WAIT_S)
        forgotten = exchange._loop.links[0].pushes.forgotten
        assert forgotten <= told[max(len(told) - 3, 0)], "the operator may have asked three steps ago"
    assert exchange._loop.links[0].pushes.forgotten > 0


def test_memory_is_touched_while_nobody_waits_for_the_lock(
    job: JobSpec, exchanges: Callable[..., Exchange], begin: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However large steps become: the thread that reads the sockets needs the lock."""
    free: list[bool] = []

    class Watched(_Segment):
        def __init__(self, *arguments: Any) -> None:
            lock = exchange._loop.changed if made else threading.Condition()
            aside = threading.current_thread().name.startswith("ring")
            free.append(aside and lock.acquire(timeout=2))
            if free[-1]:
                lock.release()
            super().__init__(*arguments)

    monkeypatch.setattr("cpr_trainer.exchange.ring._Segment", Watched)
    made: list[Exchange] = []
    exchange = exchanges(replay_bytes=8 << 10)
    made.append(exchange)
    shard = begin()
    join(exchange, shard)
    placement = Placement.of(job.model, 1)
    for step, count in enumerate((1, 5, 10, 15, 20, 20, 20, 20), 1):
        taken = np.stack([np.arange(count), np.arange(count)], axis=1)
        push(exchange, find_access(placement, taken).unique, step)
    exchange.settle(WAIT_S)
    assert len(free) > 5
    assert all(free)


def test_another_generation_keeps_nothing_of_the_last(
    exchanges: Callable[..., Exchange], begin: Start, rows: UniqueRows
) -> None:
    exchange, shard = exchanges(), begin()
    join(exchange, shard)
    push(exchange, rows, 1, 2, 3)
    exchange.settle(WAIT_S)
    shard.do(lambda: shard.ready(generation=2))
    follow(exchange, shard, roster=2, generation=2)
    exchange.wait_ready(WAIT_S)
    assert exchange.forgotten() == (-1,)
    assert exchange.applied() == (0,)


def test_rows_are_read_once_every_rank_has_sent_what_it_kept(
    job: JobSpec, exchanges: Callable[..., Exchange], rows: UniqueRows
) -> None:
    two = replace(job, trainers=2)
    first = restore(ShardThread(two, 0, 1, ready=False))
    one, other = exchanges(0, trainers=2), exchanges(1, trainers=2)
    try:
        for each in (one, other):
            join(each, first)
        for step in range(1, 6):
            for rank, each in enumerate((one, other)):
                push(each, rows, step, rank=rank)
        for each in (one, other):
            each.settle(WAIT_S)
        first.close()
        second = restore(ShardThread(two, 0, 2, ready=False))
        follow(one, second, roster=2)
        one.wait_ready(WAIT_S)
        pending = one.lookup(6, rows)
        with pytest.raises(TimeoutError):
            pending.result(0.5)
        progress = second.service.progress
        assert progress is not None
        assert not progress.resumed
        follow(other, second, roster=2)
        everything = [(rank, step) for rank in (0, 1) for step in range(1, 6)]
        assert np.array_equal(pending.result(WAIT_S), sums(rows, *everything))
        assert progress.resumed
    finally:
        for each in (one, other):
            each.close()
        first.close()
        second.close()


def test_a_rank_that_comes_back_empty_handed_keeps_nobody_waiting(
    job: JobSpec, exchanges: Callable[..., Exchange], rows: UniqueRows
) -> None:
    two = replace(job, trainers=2)
    shard = restore(ShardThread(two, 0, 1, ready=False))
    one, other = exchanges(0, trainers=2), exchanges(1, trainers=2)
    try:
        for each in (one, other):
            join(each, shard)
        for step in (1, 2, 3):
            for rank, each in enumerate((one, other)):
                push(each, rows, step, rank=rank)
        for each in (one, other):
            each.settle(WAIT_S)
        shard.close()
        other.close()
        second = restore(ShardThread(two, 0, 2, ready=False))
        heir = exchanges(1, 2, trainers=2)
        for each in (one, heir):
            join(each, second, roster=2)
        push(heir, rows, 3, rank=1)
        found = one.lookup(4, rows).result(WAIT_S)
        heir.settle(WAIT_S)
        progress = second.service.progress
        assert progress is not None
        wait_for(lambda: progress.resumed)
        assert progress.losses.lost == ((5, 10), (15, 20)), "steps 1 and 2 of the rank whose memory is gone"
        assert found.shape == (len(rows), 4)
    finally:
        for each in (one, heir):
            each.close()
        second.close()


def test_a_cut_holds_nothing_back_that_another_push_waits_for(
    job: JobSpec, exchanges: Callable[..., Exchange], rows: UniqueRows
) -> None:
    """A cut that came while one rank was past it already. The push beyond it was before one that leads up to it."""
    two = replace(job, trainers=2)
    shards = [ordered(two, 1)]
    ranks = [exchanges(rank, trainers=2) for rank in range(2)]
    try:
        for each in ranks:
            join(each, shards[0])
        for rank, step in ((0, 1), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3)):
            push(ranks[rank], rows, step, rank=rank)
            ranks[rank].settle(WAIT_S)
        before = Save(shards[0])
        shards[0].close()
        shards.append(restore(ShardThread(two, 0, 2, ready=False)))
        for each in ranks:
            each.heartbeat(2)
            follow(each, shards[1], roster=2)
        for each in ranks:
            each.wait_ready(WAIT_S)
            each.settle(WAIT_S)
        after = Save(shards[1])
        assert after.applied == before.applied == (3, 3)
        assert np.array_equal(after.rows, before.rows)
        wait_for(lambda: [each.saved()[0].given_up_step for each in ranks] == [2, 2])
    finally:
        for each in ranks:
            each.close()
        for shard in shards:
            shard.close()


def test_a_cut_that_was_pending_is_taken_by_a_successor_that_gets_all_again(
    job: JobSpec, exchanges: Callable[..., Exchange], rows: UniqueRows
) -> None:
    two = replace(job, trainers=2)
    shards = [ordered(two, 1)]
    ranks = [exchanges(rank, trainers=2) for rank in range(2)]
    taken: list[tuple[int, ...]] = []
    try:
        for each in ranks:
            join(each, shards[0])
        train(ranks, rows, random.Random(0), range(1, 7))
        shards[0].close()
        shards.append(ordered(two, 2))
        shards[1].service.on_cut = lambda: taken.append(Save(shards[1]).applied)
        for each in ranks:
            each.heartbeat(4)
            follow(each, shards[1], roster=2)
        for each in ranks:
            each.wait_ready(WAIT_S)
            each.settle(WAIT_S)
        assert taken == [(4, 4)]
        assert ranks[0].saved()[0].given_up_step == 0
    finally:
        for each in ranks:
            each.close()
        for shard in shards:
            shard.close()


def test_a_flush_in_mid_step_protects_of_each_rank_what_it_holds(
    job: JobSpec, exchanges: Callable[..., Exchange], rows: UniqueRows
) -> None:
    """It is named after the farthest rank. Twice its successor dies before it saves."""
    two = replace(job, trainers=2)
    shards = [ordered(two, 1)]
    ranks = [exchanges(rank, trainers=2) for rank in range(2)]
    try:
        for each in ranks:
            join(each, shards[0])
        train(ranks, rows, random.Random(0), range(1, 4))
        push(ranks[0], rows, 4, rank=0)
        ranks[0].settle(WAIT_S)
        flushed: list[Save] = []
        shards[0].do(lambda: flushed.append(Save(shards[0])))
        for incarnation in (2, 3):
            shards[-1].close()
            shards.append(restore(ShardThread(two, 0, incarnation, ready=False), flushed[0]))
            for each in ranks:
                follow(each, shards[-1], roster=incarnation)
            for each in ranks:
                each.wait_ready(WAIT_S)
            if incarnation == 2:
                push(ranks[1], rows, 4, rank=1)
            for each in ranks:
                each.settle(WAIT_S)
            # The next answer tells of the save once more.
            wait_for(lambda: all(each.saved()[0].incarnation == incarnation for each in ranks))  # noqa: B023
        assert flushed[0].applied == (4, 3)
        assert Save(shards[-1]).applied == (4, 4)
        assert np.array_equal(
            ranks[0].lookup(5, rows).result(WAIT_S), sums(rows, *((r, s) for r in (0, 1) for s in (1, 2, 3, 4)))
        )
    finally:
        for each in ranks:
            each.close()
        for shard in shards:
            shard.close()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("deaths", [1, 2])
def test_pushes_of_several_ranks_are_applied_in_the_order_of_the_first_time(
    job: JobSpec, exchanges: Callable[..., Exchange], rows: UniqueRows, seed: int, deaths: int
) -> None:
    """Bit for bit, by an optimizer that depends on the order."""
    adagrad = replace(job.model.sparse_optimizer, kind="RowWiseAdagrad", learning_rate=0.1)
    three = replace(job, trainers=3, model=replace(job.model, sparse_optimizer=adagrad))
    shards = [ordered(three, 1)]
    ranks = [exchanges(rank, trainers=3) for rank in range(3)]
    rng = random.Random(seed)
    try:
        for each in ranks:
            join(each, shards[0])
        train(ranks, rows, rng, range(1, 6))
        saved = save(shards[0])
        train(ranks, rows, rng, range(6, 31))
        before = Save(shards[0])
        for incarnation in range(2, 2 + deaths):
            shards[-1].close()
            shards.append(restore(ShardThread(three, 0, incarnation, ready=False), saved))
            for each in rng.sample(ranks, 3):
                follow(each, shards[-1], roster=incarnation)
        for each in ranks:
            each.wait_ready(WAIT_S)
            each.settle(WAIT_S)
        progress = shards[-1].service.progress
        assert progress is not None
        wait_for(lambda: progress.resumed)
        assert progress.in_order
        after = Save(shards[-1])
        assert after.applied == before.applied == (30, 30, 30)
        assert after.row_updates == before.row_updates
        assert np.array_equal(after.state, before.state)
        assert np.array_equal(after.rows, before.rows)
    finally:
        for each in ranks:
            each.close()
        for shard in shards:
            shard.close()


def ordered(job: JobSpec, incarnation: int) -> ShardThread:
    return restore(ShardThread(job, 0, incarnation, ready=False))


def train(ranks: list[Exchange], rows: UniqueRows, rng: random.Random, steps: range) -> None:
    """Push steps of all ranks, in each step in another order, and wait so that it is the one in which they arrive."""
    for step in steps:
        for rank in rng.sample(range(len(ranks)), len(ranks)):
            push(ranks[rank], rows, step, rank=rank)
            ranks[rank].settle(WAIT_S)
