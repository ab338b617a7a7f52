"""Memory for pushes that may have to be sent again: bounded, used over and over, and touched before it is used.

Memory that is new to the machine costs about 2 ms a MiB at its first touch. A thread aside pays that for the next
segment while the present one fills, so that a step pays for a copy alone.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

_Array = TypeVar("_Array", bound=NDArray[Any])

#: The usual size of a segment, and the least number of them in a ring.
_SEGMENT_BYTES, _SEGMENTS = 16 << 20, 16
_ALIGNMENT = 64
_PAGE_BYTES = 4096


def padded(size_bytes: int) -> int:
    """Return the room that an array of this size takes in a block."""
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT


class _Segment:
    """Consecutive memory that blocks are cut from, one after the other. `live` blocks are still in use."""

    def __init__(self, size_bytes: int) -> None:
        self.memory = np.empty(size_bytes, np.uint8)
        self.memory[::_PAGE_BYTES] = 0
        self.used = 0
        self.live = 0

    @property
    def size(self) -> int:
        return len(self.memory)

    @property
    def left(self) -> int:
        return self.size - self.used


class Block:
    """A piece of a ring, for the arrays of one step. Whoever holds it says `hold`, and `drop` once done."""

    def __init__(self, ring: Ring, segment: _Segment, size_bytes: int) -> None:
        self._ring = ring
        self._segment = segment
        self._next, self._end = segment.used, segment.used + size_bytes
        self._holders = 0
        segment.used, segment.live = self._end, segment.live + 1

    def keep(self, array: _Array) -> _Array:
        """Return a copy of a C-ordered array in this block. Their padded sizes must fit into it together."""
        start, end = self._next, self._next + array.nbytes
        if end > self._end:
            raise ValueError(f"{array.nbytes} bytes do not fit into a block with {self._end - start} left")
        self._next = start + padded(array.nbytes)
        copy = self._segment.memory[start:end].view(array.dtype).reshape(array.shape)
        copy[...] = array
        return copy  # type: ignore[return-value]

    def hold(self) -> None:
        """One more needs what the block has."""
        self._holders += 1

    def drop(self) -> None:
        """One less needs it; with the last one the memory is free."""
        self._holders -= 1
        if not self._holders:
            self._ring.free(self._segment)


class Ring:
    """Blocks of at most `limit_bytes` together. Not for several threads at once."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._segment_bytes = max(min(_SEGMENT_BYTES, limit_bytes // _SEGMENTS), _ALIGNMENT)
        self._made = 0  # bytes of all segments, the one ahead included
        self._unused: list[_Segment] = []
        self._present: _Segment | None = None
        self._ahead: Future[_Segment] | None = None
        self._largest = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ring")
        self._look_ahead()

    @property
    def fill(self) -> float:
        """The portion of the limit that is in use; a segment is, up to its last block, while any of its blocks is."""
        return 1.0 - self._open / self._limit

    def has_room(self, blocks: int) -> bool:
        """Whether so many more blocks, each as large as the largest so far, find room for sure.

        A segment may be filled by half alone, and the present one and what is not made yet by a block less.
        """
        return self._open >= (2 * blocks + 3) * self._largest

    def take(self, size_bytes: int) -> Block | None:
        """Return a block of this size; None if there is no room before others are dropped."""
        self._largest = max(self._largest, size_bytes)
        if self._present is None or self._present.left < size_bytes:
            fresh = self._fresh(size_bytes)
            if fresh is None:
                return None
            before, self._present = self._present, fresh
            if before is not None:
                self._retire(before)
        return Block(self, self._present, size_bytes)

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

    @property
    def _open(self) -> int:
        """Bytes that no block has."""
        return self._idle + (self._present.left if self._present is not None else 0)

    @property
    def _idle(self) -> int:
        """Bytes in segments that are not in use, and that may still be made."""
        ahead = self._segment_bytes if self._ahead is not None else 0
        return self._limit - self._made + ahead + sum(segment.size for segment in self._unused)

    def _fresh(self, size_bytes: int) -> _Segment | None:
        """Return an empty segment for a block of this size, the one used last first."""
        fitting = [segment for segment in self._unused if segment.size >= size_bytes]
        if fitting:
            self._unused.remove(fitting[-1])
            return fitting[-1]
        if self._ahead is not None:
            segment, self._ahead = self._ahead.result(), None
            if segment.size >= size_bytes:
                self._look_ahead()
                return segment
            self._made -= segment.size
        # Steps are larger than any before: what is too small for them makes place.
        self._made -= sum(segment.size for segment in self._unused)
        self._unused.clear()
        self._segment_bytes = max(self._segment_bytes, size_bytes + size_bytes // 4)
        size = self._segment_bytes if self._made + self._segment_bytes <= self._limit else size_bytes
        if self._made + size > self._limit:
            return None
        self._made += size
        return _Segment(size)

    def _look_ahead(self) -> None:
        if self._made + self._segment_bytes <= self._limit:
            self._made += self._segment_bytes
            self._ahead = self._thread.submit(_Segment, self._segment_bytes)

    def _retire(self, segment: _Segment) -> None:
        """Use a segment again once nothing in it is."""
        if not segment.live:
            segment.used = 0
            self._unused.append(segment)
