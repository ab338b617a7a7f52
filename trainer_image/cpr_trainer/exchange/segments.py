"""Where the memory of a ring comes from: segments, in memory first, and on disk where that is full.

Memory that is new to the machine costs about 2 ms a MiB at its first touch, so that is touched by whoever makes it. A
file on disk is allocated as a whole before any of it is used: a disk that is full shows then, and not in mid-run.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cpr_trainer.arrays import Ints
from cpr_trainer.embedding.memory import Area, Kind, ResumeFile

ALIGNMENT = 64
_PAGE_BYTES = mmap.PAGESIZE
#: The first numbers of a block that is sealed; the size is 0 in one that is not.
SIZE, NUMBER, STEP = range(3)
_HEAD_BYTES = 24


class Segment:
    """Consecutive memory that blocks are cut from, one after the other.

    `live` blocks are still in use; `last_step` is that of the last block. `used` bytes are cut; that number lies before
    the memory itself, so that it is kept as long as this is.
    """

    def __init__(self, memory: NDArray[np.uint8], pool: Pool, area: Area | None = None) -> None:
        self.memory = memory[ALIGNMENT:]
        self.pool = pool
        self.area = area
        self.live = 0
        self.last_step = 0
        self._used: Ints = memory[:8].view(np.int64)

    @property
    def used(self) -> int:
        """See above."""
        return int(self._used[0])

    @used.setter
    def used(self, size_bytes: int) -> None:
        self._used[0] = size_bytes

    @property
    def size(self) -> int:
        """How many bytes blocks can have."""
        return len(self.memory)

    @property
    def left(self) -> int:
        """How many of them are not cut."""
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
        while start < self.used and (head := self.head(start))[SIZE]:
            found.append((start, head))
            start += int(head[SIZE])
        self.used = start
        return found


class Pool(Protocol):
    """Segments of at most `limit` bytes together. `reserve` and `release` are the ring's thread's."""

    limit: int
    #: Whether making a segment takes a while: a thread aside does it.
    slow: bool
    #: What a segment takes at most beside its own size.
    overhead: int

    @property
    def gaps(self) -> Sequence[int]:
        """The sizes of the largest segments that may be made yet, beside each other."""
        ...

    def left_behind(self) -> Iterator[Segment]:
        """The segments of the last process. They count as reserved."""
        ...

    def whole(self, size_bytes: int) -> int:
        """The size of a segment for so much, which may be larger."""
        ...

    def reserve(self, size_bytes: int) -> int:
        """Set a gap of this size aside, one of which has it; return where."""
        ...

    def make(self, place: int, size_bytes: int) -> Segment:
        """Make a segment where that was set aside. Raises OSError."""
        ...

    def release(self, size_bytes: int) -> None:
        """A segment of this size is not used any more, or never was."""
        ...

    def be_rid_of(self, segment: Segment) -> None:
        """Give its memory back to the machine."""
        ...

    def close(self) -> None:
        """Make nothing more; what was made stays."""
        ...


class Memory:
    """A pool in memory: of this process, or in a file in no folder that outlives it."""

    slow, overhead = True, 0

    def __init__(self, limit_bytes: int, file: ResumeFile | None) -> None:
        self.limit = limit_bytes
        self._file = file
        self._made = 0

    @property
    def gaps(self) -> Sequence[int]:
        """See `Pool`: there is one."""
        return (self.limit - self._made,)

    def left_behind(self) -> Iterator[Segment]:
        """See `Pool`."""
        for area in () if self._file is None else self._file.areas(Kind.PUSHES):
            segment = Segment(area.memory, self, area)
            self._made += segment.size
            yield segment

    def whole(self, size_bytes: int) -> int:
        """See `Pool`."""
        return size_bytes

    def reserve(self, size_bytes: int) -> int:
        """See `Pool`."""
        self._made += size_bytes
        return 0

    def make(self, place: int, size_bytes: int) -> Segment:  # noqa: ARG002 -- memory is anywhere
        """See `Pool`. What is made was touched."""
        area = None if self._file is None else self._file.grow(Kind.PUSHES, ALIGNMENT + size_bytes)
        memory = np.zeros(ALIGNMENT + size_bytes, np.uint8) if area is None else area.memory
        segment = Segment(memory, self, area)
        segment.memory[::_PAGE_BYTES] = 0
        return segment

    def release(self, size_bytes: int) -> None:
        """See `Pool`."""
        self._made -= size_bytes

    def be_rid_of(self, segment: Segment) -> None:
        """See `Pool`."""
        if self._file is not None and segment.area is not None:
            self._file.free(segment.area)

    def close(self) -> None:
        """See `Pool`."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Where a segment lies in a spill, which is in whole pages."""

    offset: int
    size_bytes: int

    @property
    def end(self) -> int:
        return self.offset + self.size_bytes


class Spill:
    """A pool on disk: a file of `limit` bytes, mapped piece by piece. It is slower than memory, and there is more.

    The kernel writes it in the background, and takes its pages when memory is short. In a `kept` file the next process
    finds where the pieces are.
    """

    slow, overhead = False, ALIGNMENT + _PAGE_BYTES

    def __init__(self, path: Path, limit_bytes: int, kept: ResumeFile | None = None) -> None:
        """Allocate all of the file. Raises OSError, as where the disk is full; nothing is left of it then."""
        self.limit = limit_bytes // _PAGE_BYTES * _PAGE_BYTES
        self._kept = kept
        self._path = path
        self._pieces: list[_Piece] = []
        self._file = path.open("a+b")
        try:
            os.ftruncate(self._file.fileno(), self.limit)
            if self.limit:
                os.posix_fallocate(self._file.fileno(), 0, self.limit)
        except OSError:
            self._file.close()
            path.unlink()
            raise

    @property
    def gaps(self) -> Sequence[int]:
        """See `Pool`."""
        return [end - start - ALIGNMENT for start, end in self._holes() if end - start > ALIGNMENT]

    def left_behind(self) -> Iterator[Segment]:
        """See `Pool`."""
        for number, offset, size_bytes in () if self._kept is None else self._kept.noted(Kind.SPILLED):
            yield self._segment(number, offset, size_bytes)

    def whole(self, size_bytes: int) -> int:
        """See `Pool`: it ends where a page does."""
        return _in_pages(ALIGNMENT + size_bytes) - ALIGNMENT

    def reserve(self, size_bytes: int) -> int:
        """See `Pool`."""
        return next(start for start, end in self._holes() if end - start >= ALIGNMENT + size_bytes)

    def make(self, place: int, size_bytes: int) -> Segment:
        """See `Pool`."""
        size_bytes += ALIGNMENT
        with mmap.mmap(self._file.fileno(), _PAGE_BYTES, offset=place) as first:
            first[:8] = bytes(8)  # what was there before is not cut, before anybody may find it
        number = -1 if self._kept is None else self._kept.note(Kind.SPILLED, place, size_bytes)
        return self._segment(number, place, size_bytes)

    def release(self, size_bytes: int) -> None:
        """See `Pool`: nothing is set aside before it is made."""

    def be_rid_of(self, segment: Segment) -> None:
        """See `Pool`. The file keeps its size, so that the disk has room for what comes."""
        assert segment.area is not None
        self._pieces = [piece for piece in self._pieces if piece.offset != segment.area.offset]
        if self._kept is not None:
            self._kept.forget(segment.area.number)

    def close(self) -> None:
        """See `Pool`: pieces that are mapped stay."""
        self._file.close()

    def remove(self) -> None:
        """Leave nothing to another process."""
        self._path.unlink(missing_ok=True)

    def _segment(self, number: int, offset: int, size_bytes: int) -> Segment:
        mapping = mmap.mmap(self._file.fileno(), size_bytes, offset=offset)
        self._pieces.append(_Piece(offset, _in_pages(size_bytes)))
        area = Area(number, np.frombuffer(mapping, np.uint8), mapping, offset)
        return Segment(area.memory, self, area)

    def _holes(self) -> Iterator[tuple[int, int]]:
        """Where no piece is: from where to where."""
        start = 0
        for piece in (*sorted(self._pieces, key=lambda each: each.offset), _Piece(self.limit, 0)):
            if start < piece.offset:
                yield start, piece.offset
            start = piece.end


def _in_pages(size_bytes: int) -> int:
    return -(-size_bytes // _PAGE_BYTES) * _PAGE_BYTES
