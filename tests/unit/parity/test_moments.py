"""The states in which a flush is in flight, one by one: random interleavings rarely reach them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cpr_trainer.parity.flush import Point
from support.parity_ring import ParityRing, banded_job, same_rows


@pytest.fixture
def ring() -> ParityRing:
    """Three shards that have all of each other's rows, after some steps over every row."""
    ring = ParityRing(banded_job(3), 2)
    for index in range(3):
        ring.connect_all(index)
        push(ring, index)
    protect(ring)
    return ring


def protect(ring: ParityRing) -> None:
    for _ in range(40):
        for index in range(3):
            flush(ring, index)
    assert all(shard.journal.intact for shard in ring.shards)


def push(ring: ParityRing, index: int) -> None:
    ring.push(index, np.random.default_rng(len(ring.marks)), every=True)


def flush(ring: ParityRing, index: int) -> None:
    ring.seal(index)
    for part in (0, 1):
        ring.deliver(index, part)


def assert_rebuilt(ring: ParityRing, index: int, mark: str | None) -> None:
    found = ring.recover(index)
    assert found is not None
    assert found == mark
    assert same_rows(ring.shards[index].arena, ring.marks[found])
    ring.connect_all(index)
    ring.check()


@pytest.mark.parametrize("newer", [0, 1])
def test_holder_with_one_more_flush_undoes_it(ring: ParityRing, newer: int) -> None:
    mark = ring.shards[0].journal.protected
    push(ring, 0)
    ring.seal(0)
    ring.deliver(0, newer)
    assert_rebuilt(ring, 0, mark)


def test_flush_at_all_holders_counts_without_an_acknowledgement(ring: ParityRing) -> None:
    mark = ring.shards[0].journal.protected
    push(ring, 0)
    ring.seal(0)
    for part in (0, 1):
        ring.deliver(0, part, answered=False)
    assert ring.shards[0].journal.protected == mark
    assert_rebuilt(ring, 0, list(ring.marks)[-1])


@pytest.mark.parametrize("delivered", [False, True])
def test_member_returns_rows_as_of_the_parity_despite_later_changes(ring: ParityRing, *, delivered: bool) -> None:
    """Each row of shard 1 changes before and after a flush, which the parity has or lacks."""
    mark = ring.shards[0].journal.protected
    push(ring, 1)
    ring.seal(1)
    push(ring, 1)
    ring.check()
    if delivered:
        for part in (0, 1):
            ring.deliver(1, part, answered=False)
    assert_rebuilt(ring, 0, mark)


def test_parity_that_lacks_a_flush_is_reset(ring: ParityRing) -> None:
    push(ring, 1)
    ring.seal(1)
    late, store = ring.shards[1].sent[0].popleft(), ring.shards[ring.ring.holder(1, 0)].store
    build = store.build
    store.take(0, replace(late, before=late.after, after=replace(late.after, number=late.after.number + 1)))
    assert store.points == (Point(build + 1),) * 2
    for index in range(3):
        ring.connect_all(index)
    protect(ring)
    ring.check()


def test_flush_has_a_row_once_however_often_it_was_pushed(ring: ParityRing) -> None:
    """Therefore flushes cost less than steps while several steps fit between two flushes."""

    def flushed_bytes(pushes: int) -> int:
        for _ in range(pushes):
            push(ring, 0)
        ring.seal(0)
        found = sum(each.nbytes for sent in ring.shards[0].sent for each in sent)
        for part in (0, 1):
            ring.deliver(0, part)
        return found

    assert flushed_bytes(10) == flushed_bytes(1) > 0
