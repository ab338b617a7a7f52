"""The memory of retained pushes."""

from __future__ import annotations

import errno
import os
from collections import deque
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpr_trainer.embedding.memory import ResumeFile
from cpr_trainer.exchange.pools import Memory, Spill
from cpr_trainer.exchange.ring import Block, Ring, padded


def take(ring: Ring, size_bytes: int, step: int = 1) -> Block | None:
    block = ring.take(size_bytes, step)
    if block is not None:
        block.retain()
    return block


@given(
    st.integers(1 << 10, 1 << 16),
    st.lists(st.tuples(st.integers(0, 1 << 12), st.integers(0, 3)), max_size=60),
    st.none() | st.sampled_from((0, 5000, 1 << 14, 1 << 16)),
)
def test_retained_blocks_are_unchanged_and_within_the_bounds_of_memory_and_disk(
    limit: int, steps: list[tuple[int, int]], spill_bytes: int | None
) -> None:
    with TemporaryDirectory() as folder:
        path, size_bytes = Path(folder, "pushes"), spill_bytes or 0
        ring = Ring(limit, spill=None if spill_bytes is None else Spill(path, spill_bytes))
        retained: deque[tuple[Block, np.ndarray, np.ndarray]] = deque()
        rng = np.random.default_rng(0)
        for size, drops in steps:
            values = rng.integers(0, 2**31, size, dtype=np.int32)
            block = take(ring, padded(values.nbytes))
            if block is not None:
                retained.append((block, block.keep(values), values))
            assert sum(padded(copy.nbytes) for _, copy, _ in retained) <= limit + size_bytes
            assert spill_bytes is None or path.stat().st_size <= size_bytes
            assert 0 <= ring.fill <= 1
            for _ in range(min(drops, len(retained))):
                retained.popleft()[0].release()
            for _, copy, original in retained:
                assert np.array_equal(copy, original)
        ring.close()


def test_spill_takes_the_overflow_of_memory_and_freed_memory_is_preferred(tmp_path: Path) -> None:
    ring, blocks = Ring(1 << 14, spill=Spill(tmp_path / "pushes", 1 << 16)), deque[Block]()
    while (block := take(ring, 1000)) is not None:
        blocks.append(block)
    in_memory = [isinstance(block.segment.pool, Memory) for block in blocks]
    assert in_memory == sorted(in_memory, reverse=True), "the disk is used once memory is full"
    assert 12 <= in_memory.count(True) <= 16
    assert 45 <= in_memory.count(False) <= 65
    assert ring.fill > 0.85
    for _ in range(20):
        blocks.popleft().release()
    block = take(ring, 1000)
    assert block is not None
    assert isinstance(block.segment.pool, Memory)
    ring.close()


def test_all_of_a_spill_is_allocated_at_once(tmp_path: Path) -> None:
    path = tmp_path / "pushes"
    Spill(path, 1 << 20).close()
    assert path.stat().st_size == 1 << 20
    assert path.stat().st_blocks * 512 >= 1 << 20


def test_full_disk_is_reported_and_left_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        Spill(tmp_path / "pushes", 1 << 20)
    assert not list(tmp_path.iterdir())


def test_next_process_finds_spilled_pushes_in_their_order(tmp_path: Path) -> None:
    file, path = ResumeFile.new(), tmp_path / "pushes"
    ring, made = Ring(1 << 13, file, spill=Spill(path, 1 << 16, file)), []
    for step in range(1, 41):
        block = take(ring, 1024, step)
        assert block is not None
        block.keep(np.array([0, 0, 0, step]))
        block.seal(step)
        made.append(block)
    for block in made[:4]:
        block.release()
    ring.close()
    ring._thread.shutdown()
    again = ResumeFile(file.descriptor)
    next_process = Ring(1 << 13, again, spill=Spill(path, 1 << 16, again))
    steps = [int(block.read((4,), np.int64)[3]) for block in next_process.resumed]
    assert steps == sorted(steps)
    assert steps[-36:] == list(range(5, 41))
    assert {type(block.segment.pool) for block in next_process.resumed} == {Memory, Spill}
    while (block := take(next_process, 1024, 41)) is not None:
        block.keep(np.arange(128))
    old = [block.segment.memory[block._start :][:32].view(np.int64)[3] for block in next_process.resumed[-36:]]
    assert old == list(range(5, 41)), "new blocks lie in no old one"
    next_process.close()


def test_reused_segment_of_a_spill_has_no_former_blocks(tmp_path: Path) -> None:
    """A process may die before it has cut the first block there. The next one would take the old ones for its own."""
    file, path = ResumeFile.new(), tmp_path / "pushes"
    spill = Spill(path, 1 << 16, file)
    piece = spill.make(spill.reserve(1 << 13), 1 << 13)
    piece.head(piece.cut(1024))[:] = 1024, 1, 1
    piece.head(piece.cut(512))[:] = 512, 2, 2
    assert len(piece.sealed()) == 2
    place = piece.area.offset if piece.area is not None else -1
    spill.discard(piece)
    assert spill.reserve(1 << 13) == place
    spill.make(place, 1 << 13)
    spill.close()
    next_process = Spill(path, 1 << 16, ResumeFile(file.descriptor))
    (found,) = next_process.existing()
    assert (found.used, found.sealed()) == (0, [])
    next_process.close()


def test_block_is_free_after_its_last_release() -> None:
    ring = Ring(1 << 10)
    block = ring.take(1 << 10, 1)
    assert block is not None
    block.retain()
    block.retain()
    block.release()
    assert ring.take(1 << 10, 1) is None
    block.release()
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
    spilled=st.sampled_from((None, 1 << 14, 50_000)),
)
def test_only_announced_blocks_are_dropped_for_new_ones(
    limit: int, sizes: list[int], more: int, spilled: int | None
) -> None:
    """Segments hold one block or dozens. The oldest blocks are dropped for space, never more than announced."""
    with TemporaryDirectory() as folder:
        spill = None if spilled is None else Spill(Path(folder, "pushes"), spilled)
        check_announced(Ring(limit, spill=spill), sizes, more)


def check_announced(ring: Ring, sizes: list[int], more: int) -> None:
    blocks = deque[tuple[int, Block]]()
    ring.prepare(max(sizes))
    evicted = 0

    def push(step: int, size: int) -> int:
        lost = evicted
        while (block := take(ring, size, step)) is None:
            if not blocks:
                return step
            lost, oldest = blocks.popleft()
            oldest.release()
        blocks.append((step, block))
        return lost

    for step, size in enumerate(sizes, 1):
        evicted = push(step, size)
    announced = max(evicted, ring.last_evicted(more))
    for step in range(len(sizes) + 1, len(sizes) + more + 1):
        evicted = push(step, max(sizes))
    assert evicted <= announced
    ring.close()
