"""Memory for pushes that may have to be sent again: bounded, reused, and touched before its use.

New memory costs about 2 ms a MiB at its first touch. A thread touches the next segment while the current one fills, so
that a step only pays for a copy. If memory is full, segments are on disk. In a file that outlives the process the next
one finds the sealed blocks.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cpr_trainer.embedding.memory import ResumeFile
from cpr_trainer.exchange.pools import ALIGNMENT, NUMBER, SIZE, STEP, Memory, Pool, Segment, Spill

_Array = TypeVar("_Array", bound=NDArray[Any])

#: The usual size of a segment, and the least number of them in a ring.
_SEGMENT_BYTES, _SEGMENTS = 16 << 20, 16


def padded(size_bytes: int) -> int:
    """Return the bytes that an array of this size takes in a block."""
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


def padded_bytes(arrays: Sequence[NDArray[Any]]) -> int:
    """Return the bytes that these arrays take in a block."""
    return sum(padded(array.nbytes) for array in arrays)


class Block:
    """A piece of a ring for the arrays of one step. Its users are counted by `retain` and `release`."""

    def __init__(self, ring: Ring, segment: Segment, start: int, size_bytes: int) -> None:
        self._ring = ring
        self.segment = segment
        self._start = self._next = start
        self._end = start + size_bytes
        self._references = 0
        segment.live += 1

    def keep(self, array: _Array) -> _Array:
        """Return a copy of a C-ordered array in this block. The padded arrays must fit into it together."""
        copy = self.read(array.shape, array.dtype)
        copy[...] = array
        return copy  # type: ignore[return-value]

    def read(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return the next array of this block, as `keep` returned it."""
        kind = np.dtype(dtype)
        size_bytes = math.prod(shape) * kind.itemsize
        start, end = self._next, self._next + size_bytes
        if end > self._end:
            raise ValueError(f"{size_bytes} bytes do not fit into a block with {self._end - start} left")
        self._next = start + padded(size_bytes)
        return self.segment.memory[start:end].view(kind).reshape(shape)

    def seal(self, step: int) -> None:
        """Mark the block as complete. Its first array is of int64, and begins with three zeros."""
        self._ring.sealed += 1
        head = self.segment.head(self._start)
        head[NUMBER], head[STEP] = self._ring.sealed, step
        head[SIZE] = self._end - self._start

    def retain(self) -> None:
        """Count one user more."""
        self._references += 1

    def release(self) -> None:
        """Count one user less; the last one frees the memory."""
        self._references -= 1
        assert self._references >= 0, "a block is released more often than it was retained"
        if not self._references:
            self._ring.free(self.segment)


@dataclass(slots=True)
class _Capacity:
    """The number of blocks of at most `block_bytes` that fit into the free memory.

    `loose_bytes` have no segments yet; new ones will be of `segment_bytes`. `whole` counts the blocks in segments.
    """

    block_bytes: int
    segment_bytes: int
    loose_bytes: int
    whole: int = 0

    def add(self, segment: Segment) -> None:
        """Count an empty segment. One that is too small for a block is released for new ones."""
        self.whole += segment.size // self.block_bytes
        if segment.size < self.block_bytes and isinstance(segment.pool, Memory):
            self.loose_bytes += segment.size

    def in_new_segments(self, loose_bytes: int, overhead: int = 0) -> int:
        """Return the number of blocks in new segments of these bytes together; the last one may be smaller."""
        new, rest = divmod(loose_bytes, self.segment_bytes + overhead)
        return new * (self.segment_bytes // self.block_bytes) + rest // (self.block_bytes + overhead)

    @property
    def blocks(self) -> int:
        """The number of blocks in counted segments and in new ones."""
        return self.whole + self.in_new_segments(self.loose_bytes)


class Ring:
    """Blocks of at most `limit_bytes` together in memory, and more in a `spill`. Not thread-safe.

    A `file` keeps them for the next process. `resumed` are the sealed blocks of the last process, in the order of their
    sealing; retain and release those that are not needed. `sealed` counts sealed blocks.
    """

    def __init__(
        self,
        limit_bytes: int,
        file: ResumeFile | None = None,
        segment_bytes: int = _SEGMENT_BYTES,
        spill: Spill | None = None,
    ) -> None:
        self._memory = Memory(limit_bytes, file)
        self._pools: tuple[Pool, ...] = (self._memory,) if spill is None else (self._memory, spill)
        self._limit = sum(pool.limit for pool in self._pools)
        self._segment_bytes = max(min(segment_bytes, limit_bytes // _SEGMENTS), ALIGNMENT)
        self._unused: list[Segment] = []
        self._in_use: deque[Segment] = deque()  # in the order of their steps; the last one is the current one
        self._next: Future[Segment] | None = None
        self._next_bytes = 0
        self._next_pool: Pool = self._memory
        self._largest = 0
        self._last_step = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ring")
        self.sealed = 0
        self.resumed = self._find()
        if not self._unused and not self._in_use:
            self._prepare_next(self._segment_bytes)

    @property
    def fill(self) -> float:
        """The portion of the limit that is in use; a segment counts up to its last block while any block is in use."""
        return 1.0 - self._free_bytes / self._limit

    def fill_after(self, step: int) -> float:
        """Return the portion of the limit that is in use for later steps; the others may be evicted."""
        safe = (segment for segment in self._in_use if segment.last_step <= step)
        free = sum(segment.used if segment is self._current else segment.size for segment in safe)
        return self.fill - free / self._limit

    def last_evicted(self, blocks: int) -> int:
        """Return the last step that may be evicted for this many further blocks; 0: none.

        They may be an eighth larger than the largest so far. Memory is freed by segments, which may hold many steps.
        """
        size, last_step = self._largest + self._largest // 8 or 1, 0
        capacity = _Capacity(size, max(self._segment_bytes, size), *self._memory.gaps)
        others = [pool for pool in self._pools if pool is not self._memory]
        capacity.whole = sum(capacity.in_new_segments(gap, pool.overhead) for pool in others for gap in pool.gaps)
        for segment in self._unused:
            capacity.add(segment)
        if self._next is not None:
            capacity.whole += self._next_bytes // size
            if self._next_bytes < size and self._next_pool is self._memory:
                capacity.loose_bytes += self._next_bytes
        left = self._current.left // size if self._current is not None else 0
        for segment in self._in_use:
            if left + capacity.blocks >= blocks:
                return last_step
            capacity.add(segment)
            last_step = segment.last_step
        if not self._in_use and capacity.blocks >= blocks:
            return 0
        # Even the current segment may be evicted, or eviction does not suffice.
        return self._last_step + blocks

    def prepare(self, size_bytes: int) -> Future[Any] | None:
        """Prepare touched memory for a `take` of this size.

        Wait for the returned future, if there is one, before `take`, and without a lock: it may take a while.
        """
        self._largest = max(self._largest, size_bytes)
        if self._fits_current(size_bytes) or any(segment.size >= size_bytes for segment in self._unused):
            return None
        if self._next is None or self._next_bytes < size_bytes:
            self._grow(size_bytes)
        return self._next

    def take(self, size_bytes: int, step: int) -> Block | None:
        """Return a block of this size for a step; None if others have to be evicted first."""
        coming = self.prepare(size_bytes)
        if not self._fits_current(size_bytes):
            fresh = self._unused_for(size_bytes) if coming is None else coming.result()
            if fresh is None:
                return None
            if coming is not None:
                self._next = None
                self._prepare_next(self._segment_bytes)
            before = self._current
            self._in_use.append(fresh)
            if before is not None:
                self._retire(before)
        segment = self._in_use[-1]
        segment.last_step = self._last_step = step
        return Block(self, segment, segment.cut(size_bytes), size_bytes)

    def free(self, segment: Segment) -> None:
        """Free a block of this segment."""
        segment.live -= 1
        assert segment.live >= 0, "a segment has more freed blocks than it had blocks"
        if segment is not self._current:
            self._retire(segment)
        elif not segment.live:
            segment.used = 0

    def close(self) -> None:
        """End the thread, and close the spill."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        for pool in self._pools:
            pool.close()

    def _find(self) -> list[Block]:
        """Take over the segments of the last process; return their blocks in the order of their sealing."""
        found: list[tuple[int, Block]] = []
        for segment in (each for pool in self._pools for each in pool.existing()):
            blocks = segment.sealed()
            for start, head in blocks:
                size_bytes, number, segment.last_step = head.tolist()
                self._largest = max(self._largest, size_bytes)
                found.append((number, Block(self, segment, start, size_bytes)))
            if not blocks:
                self._unused.append(segment)
        found.sort(key=lambda each: each[0])
        self.sealed = max((number for number, _ in found), default=0)
        for _, block in found:
            if block.segment not in self._in_use:
                self._in_use.append(block.segment)
        if self._in_use:
            self._last_step = self._in_use[-1].last_step
        return [block for _, block in found]

    @property
    def _current(self) -> Segment | None:
        """The segment from which blocks are cut now."""
        return self._in_use[-1] if self._in_use else None

    @property
    def _free_bytes(self) -> int:
        """Bytes without a block: in unused segments, in segments not made yet, and in the current one."""
        coming = self._next_bytes if self._next is not None else 0
        loose = sum(gap for pool in self._pools for gap in pool.gaps)
        idle = loose + coming + sum(segment.size for segment in self._unused)
        return idle + (self._current.left if self._current is not None else 0)

    def _fits_current(self, size_bytes: int) -> bool:
        return self._current is not None and self._current.left >= size_bytes

    def _unused_for(self, size_bytes: int) -> Segment | None:
        """Return an empty segment for a block of this size, in memory if there is one, and the last used one first."""
        fitting = [segment for segment in self._unused if segment.size >= size_bytes]
        if not fitting:
            return None
        chosen = next((each for each in reversed(fitting) if each.pool is self._memory), fitting[-1])
        self._unused.remove(chosen)
        return chosen

    def _grow(self, size_bytes: int) -> None:
        """Start to make a segment for a step that is larger than all idle ones, which are released."""
        if self._next is not None:
            pool = self._next_pool
            if not self._next.cancel():
                self._next.add_done_callback(lambda made: pool.discard(made.result()))
            pool.release(self._next_bytes)
            self._next = None
        for segment in self._unused:
            segment.pool.release(segment.size)
            segment.pool.discard(segment)
        self._unused.clear()
        if size_bytes > self._segment_bytes:
            self._segment_bytes = size_bytes + size_bytes // 4
        self._prepare_next(self._segment_bytes, size_bytes)

    def _prepare_next(self, *sizes: int) -> None:
        """Start to make a segment of the first of these sizes that fits, in memory if possible."""
        fitting = ((pool, size) for pool in self._pools for size in sizes if max(pool.gaps, default=0) >= size)
        for pool, size in fitting:
            size_bytes = pool.rounded(size)
            place = pool.reserve(size_bytes)
            self._next_pool, self._next_bytes = pool, size_bytes
            self._next = self._thread.submit(pool.make, place, size_bytes) if pool.slow else Future()
            if not pool.slow:
                self._next.set_result(pool.make(place, size_bytes))
            return

    def _retire(self, segment: Segment) -> None:
        """Reuse a segment once none of its blocks is in use."""
        if not segment.live:
            segment.used = 0
            self._in_use.remove(segment)
            self._unused.append(segment)
