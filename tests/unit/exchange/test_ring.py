"""Memory for pushes that are kept."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpr_trainer.exchange.ring import Block, Ring, padded


def take(ring: Ring, size_bytes: int, step: int = 1) -> Block | None:
    block = ring.take(size_bytes, step)
    if block is not None:
        block.hold()
    return block


@given(
    st.integers(1 << 10, 1 << 16),
    st.lists(st.tuples(st.integers(0, 1 << 12), st.integers(0, 3)), max_size=60),
)
def test_what_is_kept_stays_as_it_is_until_it_is_dropped(limit: int, steps: list[tuple[int, int]]) -> None:
    ring = Ring(limit)
    kept: deque[tuple[Block, np.ndarray, np.ndarray]] = deque()
    rng = np.random.default_rng(0)
    for size, drops in steps:
        values = rng.integers(0, 2**31, size, dtype=np.int32)
        block = take(ring, padded(values.nbytes))
        if block is not None:
            kept.append((block, block.keep(values), values))
        assert sum(padded(copy.nbytes) for _, copy, _ in kept) <= limit
        for _ in range(min(drops, len(kept))):
            kept.popleft()[0].drop()
        for _, copy, original in kept:
            assert np.array_equal(copy, original)
    ring.close()


def test_dropping_the_oldest_makes_room() -> None:
    ring, blocks = Ring(1 << 16), deque[Block]()
    while (block := take(ring, 1000)) is not None:
        blocks.append(block)
    assert ring.fill > 0.9
    assert len(blocks) > 40
    for _ in range(1000):
        while (block := take(ring, 1000)) is None:
            blocks.popleft().drop()
        blocks.append(block)
    while blocks:
        blocks.popleft().drop()
    assert ring.fill < 0.1
    ring.close()


def test_a_block_is_free_once_nobody_holds_it() -> None:
    ring = Ring(1 << 10)
    block = ring.take(1 << 10, 1)
    assert block is not None
    block.hold()
    block.hold()
    block.drop()
    assert ring.take(1 << 10, 1) is None
    block.drop()
    assert ring.take(1 << 10, 1) is not None
    ring.close()


def test_a_block_takes_no_more_than_was_asked_for() -> None:
    ring = Ring(1 << 12)
    block = take(ring, 128)
    assert block is not None
    block.keep(np.zeros(16, np.float32))
    with pytest.raises(ValueError, match="do not fit"):
        block.keep(np.zeros(17, np.float32))
    ring.close()


@given(
    limit=st.sampled_from((1 << 12, 1 << 14, 1 << 16)),
    sizes=st.lists(st.integers(1, 1 << 9), min_size=1, max_size=300),
    more=st.integers(1, 5),
)
def test_no_block_goes_for_the_next_ones_that_was_not_told_of(limit: int, sizes: list[int], more: int) -> None:
    """Segments hold one block or dozens; the oldest blocks go until there is room, and never more than was told."""
    ring, blocks = Ring(limit), deque[tuple[int, Block]]()
    ring.prepare(max(sizes))
    gone = 0

    def push(step: int, size: int) -> int:
        lost = gone
        while (block := take(ring, size, step)) is None:
            if not blocks:
                return step
            lost, oldest = blocks.popleft()
            oldest.drop()
        blocks.append((step, block))
        return lost

    for step, size in enumerate(sizes, 1):
        gone = push(step, size)
    told = max(gone, ring.last_to_go(more))
    for step in range(len(sizes) + 1, len(sizes) + more + 1):
        gone = push(step, max(sizes))
    assert gone <= told
    ring.close()
