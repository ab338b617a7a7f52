"""Memory for pushes that may have to be sent again: bounded, used over and over, and touched before it is used.

Memory that is new to the machine costs about 2 ms a MiB at its first touch. A thread aside pays that for the next
segment while the present one fills, so that a step pays for a copy alone.

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

from cpr_trainer.arrays import Ints
from cpr_trainer.tables.memory import Area, KeptFile, Kind

_Array = TypeVar("_Array", bound=NDArray[Any])

#: The usual size of a segment, and the least number of them in a ring.
_SEGMENT_BYTES, _SEGMENTS = 16 << 20, 16
_ALIGNMENT = 64
_PAGE_BYTES = 4096
#: The first numbers of a block that is sealed; the size is 0 in one that is not.
_SIZE, _NUMBER, _STEP = range(3)
_HEAD_BYTES = 24


def padded(size_bytes: int) -> int:
    """Return the room that an array of this size takes in a block."""
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT


def room_bytes(arrays: Sequence[NDArray[Any]]) -> int:
    """Return the room that these arrays take in a block."""
    return sum(padded(array.nbytes) for array in arrays)


class _Segment:
    """Consecutive memory that blocks are cut from, one after the other.

    `live` blocks are still in use; `last_step` is that of the last block. `used` bytes are cut; that number lies before
    the memory itself, so that it is kept as long as this is.
    """

    def __init__(self, memory: NDArray[np.uint8], area: Area | None = None) -> None:
        self.memory = memory[_ALIGNMENT:]
        self.area = area
        self.live = 0
        self.last_step = 0
        self._used: Ints = memory[:8].view(np.int64)

    @classmethod
    def new(cls, size_bytes: int, file: KeptFile | None) -> _Segment:
        """Make one in the file, or in memory of this process, and touch it."""
        area = file.grow(Kind.PUSHES, _ALIGNMENT + size_bytes) if file is not None else None
        segment = cls(np.zeros(_ALIGNMENT + size_bytes, np.uint8) if area is None else area.memory, area)
        segment.memory[::_PAGE_BYTES] = 0
        return segment

    @property
    def used(self) -> int:
        return int(self._used[0])

    @used.setter
    def used(self, size_bytes: int) -> None:
        self._used[0] = size_bytes

    @property
    def size(self) -> int:
        return len(self.memory)

    @property
    def left(self) -> int:
        return self.size - self.used

    def cut(self, size_bytes: int) -> int:
        """Return where the next block begins, which is not sealed."""
        start = self.used
        self.memory[start : start + 8] = 0
        self.used = start + size_bytes
        return start

    def head(self, start: int) -> Ints:
        """The first numbers of the block that begins there, see `Block.seal`."""
        return self.memory[start : start + _HEAD_BYTES].view(np.int64)

    def sealed(self) -> list[tuple[int, Ints]]:
        """Where the sealed blocks begin, and their first numbers; nothing after them counts as cut."""
        found, start = list[tuple[int, Ints]](), 0
        while start < self.used and (head := self.head(start))[_SIZE]:
            found.append((start, head))
            start += int(head[_SIZE])
        self.used = start
        return found


class Block:
    """A piece of a ring, for the arrays of one step. Whoever holds it says `hold`, and `drop` once done."""

    def __init__(self, ring: Ring, segment: _Segment, start: int, size_bytes: int) -> None:
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
        head[_NUMBER], head[_STEP] = self._ring.sealed, step
        head[_SIZE] = self._end - self._start

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

    New segments will be of `segment_bytes`, out of `loose_bytes` that have none yet.
    """

    block_bytes: int
    segment_bytes: int
    loose_bytes: int
    whole: int = 0

    def add(self, size_bytes: int) -> None:
        """Count an empty segment. One that is too small for a block makes place for others."""
        self.whole += size_bytes // self.block_bytes
        self.loose_bytes += size_bytes if size_bytes < self.block_bytes else 0

    @property
    def blocks(self) -> int:
        """As many as were counted, and as fit into new segments, the last of which may be smaller."""
        new, rest = divmod(self.loose_bytes, self.segment_bytes)
        return self.whole + new * (self.segment_bytes // self.block_bytes) + rest // self.block_bytes


class Ring:
    """Blocks of at most `limit_bytes` together. Not for several threads at once.

    In a `file` they are kept with it; `left` are those that the last process left, in the order in which they were
    sealed: whoever does not need one says `hold` and `drop`. `sealed` counts.
    """

    def __init__(self, limit_bytes: int, file: KeptFile | None = None, segment_bytes: int = _SEGMENT_BYTES) -> None:
        self._limit = limit_bytes
        self._file = file
        self._segment_bytes = max(min(segment_bytes, limit_bytes // _SEGMENTS), _ALIGNMENT)
        self._made = 0  # bytes of all segments, the one ahead included
        self._unused: list[_Segment] = []
        self._in_use: deque[_Segment] = deque()  # in the order of their steps; the last one is the present one
        self._ahead: Future[_Segment] | None = None
        self._ahead_bytes = 0
        self._largest = 0
        self._last_step = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ring")
        self.sealed = 0
        self.left = [] if file is None else self._find(file)
        if not self._made and self._segment_bytes <= limit_bytes:
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
        room = _Room(size, max(self._segment_bytes, size), self._limit - self._made)
        for segment in self._unused:
            room.add(segment.size)
        if self._ahead is not None:
            room.add(self._ahead_bytes)
        left = self._present.left // size if self._present is not None else 0
        for segment in self._in_use:
            if left + room.blocks >= blocks:
                return last_step
            room.add(segment.size)
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
                if self._made + self._segment_bytes <= self._limit:
                    self._look_ahead(self._segment_bytes)
            before = self._present
            self._in_use.append(fresh)
            if before is not None:
                self._retire(before)
        segment = self._in_use[-1]
        segment.last_step = self._last_step = step
        return Block(self, segment, segment.cut(size_bytes), size_bytes)

    def free(self, segment: _Segment) -> None:
        """A block of this segment is done with."""
        segment.live -= 1
        if segment is not self._present:
            self._retire(segment)
        elif not segment.live:
            segment.used = 0

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _find(self, file: KeptFile) -> list[Block]:
        """Use the segments of the last process, and return their blocks, in the order in which they were sealed."""
        found: list[tuple[int, Block]] = []
        segments = [_Segment(area.memory, area) for area in file.areas(Kind.PUSHES)]
        for segment in segments:
            self._made += segment.size
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
    def _present(self) -> _Segment | None:
        """The one that blocks are cut from now."""
        return self._in_use[-1] if self._in_use else None

    @property
    def _open(self) -> int:
        """Bytes that no block has: those of segments that are not in use, or not made yet, and what is left."""
        ahead = self._ahead_bytes if self._ahead is not None else 0
        idle = self._limit - self._made + ahead + sum(segment.size for segment in self._unused)
        return idle + (self._present.left if self._present is not None else 0)

    def _fits_present(self, size_bytes: int) -> bool:
        return self._present is not None and self._present.left >= size_bytes

    def _unused_for(self, size_bytes: int) -> _Segment | None:
        """Return an empty segment for a block of this size, the one used last first."""
        fitting = [segment for segment in self._unused if segment.size >= size_bytes]
        if not fitting:
            return None
        self._unused.remove(fitting[-1])
        return fitting[-1]

    def _grow(self, size_bytes: int) -> None:
        """Begin to make a segment for steps that are larger than all idle ones: what is too small makes place."""
        if self._ahead is not None:
            if not self._ahead.cancel():
                self._ahead.add_done_callback(lambda made: self._give_back(made.result()))
            self._ahead, self._made = None, self._made - self._ahead_bytes
        for segment in self._unused:
            self._made -= segment.size
            self._give_back(segment)
        self._unused.clear()
        if size_bytes > self._segment_bytes:
            self._segment_bytes = size_bytes + size_bytes // 4
        for size in (self._segment_bytes, size_bytes):
            if self._made + size <= self._limit:
                self._look_ahead(size)
                return

    def _look_ahead(self, size_bytes: int) -> None:
        self._made, self._ahead_bytes = self._made + size_bytes, size_bytes
        self._ahead = self._thread.submit(_Segment.new, size_bytes, self._file)

    def _give_back(self, segment: _Segment) -> None:
        """Let the file be rid of a segment that is not used any more."""
        if self._file is not None and segment.area is not None:
            self._file.free(segment.area)

    def _retire(self, segment: _Segment) -> None:
        """Use a segment again once nothing in it is."""
        if not segment.live:
            segment.used = 0
            self._in_use.remove(segment)
            self._unused.append(segment)
