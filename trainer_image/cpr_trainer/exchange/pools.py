"""Pools of segments for a ring: memory first, and a file on disk if that is full.

New memory is touched when a segment is made, because the first touch costs about 2 ms a MiB. The file is allocated as a
whole beforehand, so a full disk is noticed at the start and not during the run.
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
#: The first numbers of a sealed block; the size is 0 in one that is not sealed.
SIZE, NUMBER, STEP = range(3)
_HEAD_BYTES = 24


class Segment:
    """Contiguous memory from which blocks are cut one after another.

    `live` counts the blocks in use; `last_step` is that of the last block. `used` bytes are cut; that number lies
    before the memory itself, so the next process finds it.
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
        """The bytes that are cut."""
        return int(self._used[0])

    @used.setter
    def used(self, size_bytes: int) -> None:
        self._used[0] = size_bytes

    @property
    def size(self) -> int:
        """The bytes for blocks."""
        return len(self.memory)

    @property
    def left(self) -> int:
        """The bytes that are not cut yet."""
        return self.size - self.used

    def cut(self, size_bytes: int) -> int:
        """Cut a block, which is not sealed; return its start."""
        start = self.used
        assert start + size_bytes <= self.size, f"a block of {size_bytes} bytes where {self.left} are left"
        self.memory[start : start + 8] = 0
        self.used = start + size_bytes
        return start

    def head(self, start: int) -> Ints:
        """Return the first numbers of the block at `start`, see `Block.seal`."""
        return self.memory[start : start + _HEAD_BYTES].view(np.int64)

    def sealed(self) -> list[tuple[int, Ints]]:
        """Return the starts of the sealed blocks, and their first numbers; drop all after them."""
        found, start = list[tuple[int, Ints]](), 0
        while start < self.used and (head := self.head(start))[SIZE]:
            found.append((start, head))
            start += int(head[SIZE])
        self.used = start
        return found


class Pool(Protocol):
    """Segments of at most `limit` bytes together. `reserve` and `release` are the ring's thread's."""

    limit: int
    #: True if making a segment takes a while, so that a thread does it.
    slow: bool = True
    #: The most bytes that a segment takes in addition to its size.
    overhead: int = 0

    @property
    def gaps(self) -> Sequence[int]:
        """The sizes of the segments that fit into the free gaps, one for each gap."""

    def existing(self) -> Iterator[Segment]:
        """Yield the segments of the last process, which count as reserved."""

    def rounded(self, size_bytes: int) -> int:
        """Return the size of a segment for these bytes, which may be larger."""
        return size_bytes

    def reserve(self, size_bytes: int) -> int:
        """Reserve this size in one of the gaps; return its place."""

    def make(self, place: int, size_bytes: int) -> Segment:
        """Make a segment at a reserved place. Raises OSError."""

    def release(self, size_bytes: int) -> None:
        """Undo the reservation of this size."""

    def discard(self, segment: Segment) -> None:
        """Return a segment's memory to the system."""

    def close(self) -> None:
        """Make no more segments; existing ones stay."""


class Memory(Pool):
    """A pool in memory: of this process, or in an anonymous file that outlives it."""

    def __init__(self, limit_bytes: int, file: ResumeFile | None) -> None:
        self.limit = limit_bytes
        self._file = file
        self._made = 0

    @property
    def gaps(self) -> Sequence[int]:
        """See `Pool`: there is one."""
        return (self.limit - self._made,)

    def existing(self) -> Iterator[Segment]:
        """See `Pool`."""
        for area in () if self._file is None else self._file.areas(Kind.PUSHES):
            segment = Segment(area.memory, self, area)
            self._made += segment.size
            yield segment

    def reserve(self, size_bytes: int) -> int:
        """See `Pool`."""
        self._made += size_bytes
        return 0

    def make(self, place: int, size_bytes: int) -> Segment:  # noqa: ARG002 -- memory is anywhere
        """See `Pool`. The segment is touched."""
        area = None if self._file is None else self._file.grow(Kind.PUSHES, ALIGNMENT + size_bytes)
        memory = np.zeros(ALIGNMENT + size_bytes, np.uint8) if area is None else area.memory
        segment = Segment(memory, self, area)
        segment.memory[::_PAGE_BYTES] = 0
        return segment

    def release(self, size_bytes: int) -> None:
        """See `Pool`."""
        self._made -= size_bytes

    def discard(self, segment: Segment) -> None:
        """See `Pool`."""
        if self._file is not None and segment.area is not None:
            self._file.free(segment.area)

    def close(self) -> None:
        """See `Pool`."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """The place of a segment in a spill, in whole pages."""

    offset: int
    size_bytes: int

    @property
    def end(self) -> int:
        return self.offset + self.size_bytes


class Spill(Pool):
    """A pool on disk: a file of `limit` bytes, mapped piece by piece.

    The kernel writes it in the background, and evicts its pages when memory is short. `resume_file` records the places
    of the pieces for the next process.
    """

    slow, overhead = False, ALIGNMENT + _PAGE_BYTES

    def __init__(self, path: Path, limit_bytes: int, resume_file: ResumeFile | None = None) -> None:
        """Allocate the whole file. Raises OSError, for example on a full disk, and removes the file then."""
        self.limit = limit_bytes // _PAGE_BYTES * _PAGE_BYTES
        self._resume_file = resume_file
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

    def existing(self) -> Iterator[Segment]:
        """See `Pool`."""
        for number, offset, size_bytes in () if self._resume_file is None else self._resume_file.noted(Kind.SPILLED):
            yield self._segment(number, offset, size_bytes)

    def rounded(self, size_bytes: int) -> int:
        """See `Pool`: the segment ends at the end of a page."""
        return _in_pages(ALIGNMENT + size_bytes) - ALIGNMENT

    def reserve(self, size_bytes: int) -> int:
        """See `Pool`."""
        return next(start for start, end in self._holes() if end - start >= ALIGNMENT + size_bytes)

    def make(self, place: int, size_bytes: int) -> Segment:
        """See `Pool`."""
        size_bytes += ALIGNMENT
        with mmap.mmap(self._file.fileno(), _PAGE_BYTES, offset=place) as first:
            first[:8] = bytes(8)  # nothing of it is cut, before the next process may find it
        number = -1 if self._resume_file is None else self._resume_file.note(Kind.SPILLED, place, size_bytes)
        return self._segment(number, place, size_bytes)

    def release(self, size_bytes: int) -> None:
        """See `Pool`: only existing pieces are reserved."""

    def discard(self, segment: Segment) -> None:
        """See `Pool`. The file keeps its size on disk for later segments."""
        assert segment.area is not None, "a segment of another pool"
        self._pieces = [piece for piece in self._pieces if piece.offset != segment.area.offset]
        if self._resume_file is not None:
            self._resume_file.forget(segment.area.number)

    def close(self) -> None:
        """See `Pool`: mapped pieces stay."""
        self._file.close()

    def remove(self) -> None:
        """Delete the file."""
        self._path.unlink(missing_ok=True)

    def _segment(self, number: int, offset: int, size_bytes: int) -> Segment:
        mapping = mmap.mmap(self._file.fileno(), size_bytes, offset=offset)
        self._pieces.append(_Piece(offset, _in_pages(size_bytes)))
        area = Area(number, np.frombuffer(mapping, np.uint8), mapping, offset)
        return Segment(area.memory, self, area)

    def _holes(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges without a piece."""
        start = 0
        for piece in (*sorted(self._pieces, key=lambda each: each.offset), _Piece(self.limit, 0)):
            if start < piece.offset:
                yield start, piece.offset
            start = piece.end


def _in_pages(size_bytes: int) -> int:
    return -(-size_bytes // _PAGE_BYTES) * _PAGE_BYTES
