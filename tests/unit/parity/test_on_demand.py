"""A replaced shard serves while its rows come: what is needed comes first, and what cannot be had ends it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cpr_trainer.parity.fetch import Missing, Piece
from cpr_trainer.shard import redundancy
from support.exchanges import WAIT_S, wait_for
from support.parity_job import SHARDS, K, ParityJob, parity_of
from support.parity_ring import same_rows
from support.shard_job import small_job
from support.shard_thread import ShardThread

JOB = replace(
    small_job(Path("unused"), shards=SHARDS, rows=(900, 370)), replay_bytes=1 << 20, parity_shards=K, silence_s=2.0
)
LOST = 1


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Iterator[ParityJob]:
    monkeypatch.setattr(redundancy, "INTERVAL_S", 0.05)
    running = ParityJob(JOB)
    yield running
    running.close()


@pytest.fixture
def go_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Until it is called only rows come that somebody waits for."""
    gate, pieces = threading.Event(), Missing.pieces

    def held(missing: Missing) -> Iterator[Piece]:
        while not gate.is_set() and not missing.closed:
            time.sleep(0.001)
            yield 0, 0, range(0)
        yield from pieces(missing)

    monkeypatch.setattr(Missing, "pieces", held)
    yield gate.set
    gate.set()


def blank(shard: ShardThread) -> None:
    """Make rows that have not come show."""
    for segment in shard.arena.segments:
        segment.rows.fill(np.nan)


def lose(running: ParityJob) -> tuple[ShardThread, ShardThread]:
    """Replace a shard; return the one that is lost, and its successor, which serves."""
    for _ in range(5):
        running.push()
    running.protect()
    lost = running.shards[LOST]
    lost.close()
    new, found = running.rebuild(LOST)
    assert found is not None
    new.do(lambda: blank(new))
    running.serve(new, *found)
    return lost, new


def left(shard: ShardThread) -> int:
    missing = shard.service.missing
    return 0 if missing is None else missing.left


def test_it_is_trained_and_flushes_before_it_has_all_rows(running: ParityJob, go_on: Callable[[], None]) -> None:
    lost, new = lose(running)
    running.exchange.wait_ready(WAIT_S)
    assert left(new) == len(new.arena), "nobody has asked for any"
    steps = range(running.step + 1, running.step + 4)
    for step in steps:
        running.push()
        apply(running, lost, step)
    running.protect()
    assert 0 < left(new) < len(new.arena)
    go_on()
    wait_for(lambda: left(new) == 0)
    assert same_rows(new.arena, lost.arena)
    running.protect()
    running.check()


def test_it_is_lost_again_before_it_has_all_rows(running: ParityJob, go_on: Callable[[], None]) -> None:
    lost, new = lose(running)
    running.push()
    apply(running, lost, running.step)
    running.protect()
    assert left(new) > 0
    new.close()
    newest, found = running.rebuild(LOST)
    assert found is not None
    assert found[0].applied == (running.step,), "it has flushed what it was pushed"
    running.serve(newest, *found)
    go_on()
    wait_for(lambda: left(newest) == 0)
    assert same_rows(newest.arena, lost.arena)


@pytest.mark.parametrize("neighbour", [0, 2, 3])
def test_a_neighbour_that_is_lost_meanwhile_ends_it(
    running: ParityJob, go_on: Callable[[], None], neighbour: int
) -> None:
    """Of four shards each has a part in what is to come, as a holder or as a member."""
    _, new = lose(running)
    running.replace(neighbour)
    running.tell_shards()
    wait_for(lambda: bool(parity_of(new).gone))
    go_on()
    assert left(new) > 0


def test_it_tells_no_other_shard_its_rows_before_it_has_all(running: ParityJob, go_on: Callable[[], None]) -> None:
    _, new = lose(running)
    running.shards[2].close()
    other, found = running.rebuild(2)
    other.close()
    assert found is None
    assert left(new) > 0
    go_on()


def test_neighbours_that_serve_no_trainer_any_more_still_tell_their_rows(
    running: ParityJob, go_on: Callable[[], None]
) -> None:
    """They wait for who reads their rows, and no longer."""
    _, new = lose(running)
    others = [shard for shard in running.shards if shard is not new]
    for shard in others:
        shard.do(shard.server.stop)
    assert all(is_read(shard) for shard in others)
    go_on()
    wait_for(lambda: left(new) == 0)
    wait_for(lambda: not any(is_read(shard) for shard in others))


def is_read(shard: ShardThread) -> bool:
    found = list[bool]()
    shard.do(lambda: found.append(shard.server.is_read(time.monotonic(), JOB.silence_s)))
    return found[0]


def apply(running: ParityJob, shard: ShardThread, step: int) -> None:
    """Let the rows of a shard that is closed have a push, too."""
    rows, values = running.pushed(step)
    part = rows.on_shard(shard.index)
    slots = rows.places[part] - running.placement.starts[shard.index]
    if len(slots):
        assert shard.arena.apply(slots, rows.numbers[part], values[part], step)
