"""Memory for pushes that may have to be sent again: bounded, used over and over, and touched before it is used.

Memory that is new to the machine costs about 2 ms a MiB at its first touch. A thread aside pays that for the next
segment while the present one fills, so that a step pays for a copy alone. Where memory is full, segments are on disk.

In a file that outlives the process the next one finds the blocks that were in use. A block counts once it is sealed.
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
from cpr_trainer.exchange.segments import ALIGNMENT, NUMBER, SIZE, STEP, Memory, Pool, Segment, Spill

_Array = TypeVar("_Array", bound=NDArray[Any])

#: The usual size of a segment, and the least number of them in a ring.
_SEGMENT_BYTES, _SEGMENTS = 16 << 20, 16


def padded(size_bytes: int) -> int:
    """Return the room that an array of this size takes in a block."""
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


def room_bytes(arrays: Sequence[NDArray[Any]]) -> int:
    """Return the room that these arrays take in a block."""
    return sum(padded(array.nbytes) for array in arrays)


class Block:
    """A piece of a ring, for the arrays of one step. Whoever holds it says `hold`, and `drop` once done."""

    def __init__(self, ring: Ring, segment: Segment, start: int, size_bytes: int) -> None:
        self._ring = ring
        self.segment = segment
        self._start = self._next = start
        self._end = start + size_bytes
        self._holders = 0
        segment.live += 1

    def keep(self, array: _Array) -> _Array:
        """Return a copy of a C-ordered array in this block. Their padded sizes must fit into it together."""
        copy = self.read(array.shape, array.dtype)
        copy[...] = array
        return copy  # type: ignore[return-value]

    def read(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return the next array of this block, as `keep` has returned it."""
        kind = np.dtype(dtype)
        size_bytes = math.prod(shape) * kind.itemsize
        start, end = self._next, self._next + size_bytes
        if end > self._end:
            raise ValueError(f"{size_bytes} bytes do not fit into a block with {self._end - start} left")
        self._next = start + padded(size_bytes)
        return self.segment.memory[start:end].view(kind).reshape(shape)

    def seal(self, step: int) -> None:
        """All is in the block that belongs there. Its first array is of int64, and begins with three zeros."""
        self._ring.sealed += 1
        head = self.segment.head(self._start)
        head[NUMBER], head[STEP] = self._ring.sealed, step
        head[SIZE] = self._end - self._start

    def hold(self) -> None:
        """One more needs what the block has."""
        self._holders += 1

    def drop(self) -> None:
        """One less needs it; with the last one the memory is free."""
        self._holders -= 1
        if not self._holders:
            self._ring.free(self.segment)


@dataclass(slots=True)
class _Room:
    """How many blocks of at most `block_bytes` find room, however small each is.

    New segments will be of `segment_bytes`, out of `loose_bytes` of memory that have none yet.
    """

    block_bytes: int
    segment_bytes: int
    loose_bytes: int
    whole: int = 0

    def add(self, segment: Segment) -> None:
        """Count an empty segment. One that is too small for a block makes place for others."""
        self.whole += segment.size // self.block_bytes
        if segment.size < self.block_bytes and isinstance(segment.pool, Memory):
            self.loose_bytes += segment.size

    def in_new(self, loose_bytes: int, overhead: int = 0) -> int:
        """How many find room in new segments of so many bytes together, the last of which may be smaller."""
        new, rest = divmod(loose_bytes, self.segment_bytes + overhead)
        return new * (self.segment_bytes // self.block_bytes) + rest // (self.block_bytes + overhead)

    @property
    def blocks(self) -> int:
        """As many as were counted, and as fit into new segments."""
        return self.whole + self.in_new(self.loose_bytes)


class Ring:
    """Blocks of at most `limit_bytes` together in memory, and more in a `spill`. Not for several threads at once.

    In a `file` they are kept with it; `left` are those that the last process left, in the order in which they were
    sealed: whoever does not need one says `hold` and `drop`. `sealed` counts.
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
        self._in_use: deque[Segment] = deque()  # in the order of their steps; the last one is the present one
        self._ahead: Future[Segment] | None = None
        self._ahead_bytes = 0
        self._ahead_pool: Pool = self._memory
        self._largest = 0
        self._last_step = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ring")
        self.sealed = 0
        self.left = self._find()
        if not self._unused and not self._in_use:
            self._look_ahead(self._segment_bytes)

    @property
    def fill(self) -> float:
        """The portion of the limit that is in use; a segment is, up to its last block, while any of its blocks is."""
        return 1.0 - self._open / self._limit

    def fill_after(self, step: int) -> float:
        """The portion of the limit that is in use for later steps; the rest may be made free."""
        safe = (segment for segment in self._in_use if segment.last_step <= step)
        free = sum(segment.used if segment is self._present else segment.size for segment in safe)
        return self.fill - free / self._limit

    def last_to_go(self, blocks: int) -> int:
        """Return the last step whose block may have to go before so many more have found room; 0: none has to.

        They may be an eighth larger than the largest so far. Memory comes back by segments, which may hold many steps.
        """
        size, last_step = self._largest + self._largest // 8 or 1, 0
        room = _Room(size, max(self._segment_bytes, size), *self._memory.gaps)
        others = [pool for pool in self._pools if pool is not self._memory]
        room.whole = sum(room.in_new(gap, pool.overhead) for pool in others for gap in pool.gaps)
        for segment in self._unused:
            room.add(segment)
        if self._ahead is not None:
            room.whole += self._ahead_bytes // size
            if self._ahead_bytes < size and self._ahead_pool is self._memory:
                room.loose_bytes += self._ahead_bytes
        left = self._present.left // size if self._present is not None else 0
        for segment in self._in_use:
            if left + room.blocks >= blocks:
                return last_step
            room.add(segment)
            last_step = segment.last_step
        if not self._in_use and room.blocks >= blocks:
            return 0
        # Even the present segment may go, or there is no room whatever goes.
        return self._last_step + blocks

    def prepare(self, size_bytes: int) -> Future[Any] | None:
        """See to it that `take` of this size finds memory that is touched.

        Wait for what is returned, None for nothing, before `take`: with no lock held, because it may take a while.
        """
        self._largest = max(self._largest, size_bytes)
        if self._fits_present(size_bytes) or any(segment.size >= size_bytes for segment in self._unused):
            return None
        if self._ahead is None or self._ahead_bytes < size_bytes:
            self._grow(size_bytes)
        return self._ahead

    def take(self, size_bytes: int, step: int) -> Block | None:
        """Return a block of this size for a step; None if there is no room before others are dropped."""
        coming = self.prepare(size_bytes)
        if not self._fits_present(size_bytes):
            fresh = self._unused_for(size_bytes) if coming is None else coming.result()
            if fresh is None:
                return None
            if coming is not None:
                self._ahead = None
                self._look_ahead(self._segment_bytes)
            before = self._present
            self._in_use.append(fresh)
            if before is not None:
                self._retire(before)
        segment = self._in_use[-1]
        segment.last_step = self._last_step = step
        return Block(self, segment, segment.cut(size_bytes), size_bytes)

    def free(self, segment: Segment) -> None:
        """A block of this segment is done with."""
        segment.live -= 1
        if segment is not self._present:
            self._retire(segment)
        elif not segment.live:
            segment.used = 0

    def close(self) -> None:
        """End the thread, and close the spill."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        for pool in self._pools:
            pool.close()

    def _find(self) -> list[Block]:
        """Use the segments of the last process, and return their blocks, in the order in which they were sealed."""
        found: list[tuple[int, Block]] = []
        for segment in (each for pool in self._pools for each in pool.left_behind()):
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
    def _present(self) -> Segment | None:
        """The one that blocks are cut from now."""
        return self._in_use[-1] if self._in_use else None

    @property
    def _open(self) -> int:
        """Bytes that no block has: those of segments that are not in use, or not made yet, and what is left."""
        ahead = self._ahead_bytes if self._ahead is not None else 0
        loose = sum(gap for pool in self._pools for gap in pool.gaps)
        idle = loose + ahead + sum(segment.size for segment in self._unused)
        return idle + (self._present.left if self._present is not None else 0)

    def _fits_present(self, size_bytes: int) -> bool:
        return self._present is not None and self._present.left >= size_bytes

    def _unused_for(self, size_bytes: int) -> Segment | None:
        """Return an empty segment for a block of this size: in memory, if there is one, the one used last first."""
        fitting = [segment for segment in self._unused if segment.size >= size_bytes]
        if not fitting:
            return None
        chosen = next((each for each in reversed(fitting) if each.pool is self._memory), fitting[-1])
        self._unused.remove(chosen)
        return chosen

    def _grow(self, size_bytes: int) -> None:
        """Begin to make a segment for steps that are larger than all idle ones: what is too small makes place."""
        if self._ahead is not None:
            pool = self._ahead_pool
            if not self._ahead.cancel():
                self._ahead.add_done_callback(lambda made: pool.be_rid_of(made.result()))
            pool.release(self._ahead_bytes)
            self._ahead = None
        for segment in self._unused:
            segment.pool.release(segment.size)
            segment.pool.be_rid_of(segment)
        self._unused.clear()
        if size_bytes > self._segment_bytes:
            self._segment_bytes = size_bytes + size_bytes // 4
        self._look_ahead(self._segment_bytes, size_bytes)

    def _look_ahead(self, *sizes: int) -> None:
        """Begin to make a segment of the first of these sizes for which there is room, in memory if there is some."""
        wanted = ((pool, size) for pool in self._pools for size in sizes if max(pool.gaps, default=0) >= size)
        for pool, size in wanted:
            size_bytes = pool.whole(size)
            place = pool.reserve(size_bytes)
            self._ahead_pool, self._ahead_bytes = pool, size_bytes
            self._ahead = self._thread.submit(pool.make, place, size_bytes) if pool.slow else Future()
            if not pool.slow:
                self._ahead.set_result(pool.make(place, size_bytes))
            return

    def _retire(self, segment: Segment) -> None:
        """Use a segment again once nothing in it is."""
        if not segment.live:
            segment.used = 0
            self._in_use.remove(segment)
            self._unused.append(segment)
