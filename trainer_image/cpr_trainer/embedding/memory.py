"""Memory for the arrays of an arena: of this process, or outliving it; and a growing file for a trainer's state."""

from __future__ import annotations

import enum
import mmap
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cpr_trainer.arrays import Ints

#: Arrays begin where a line of the processor's cache does.
_ALIGNMENT = 64
#: Pages count once they are touched, and most of those reserved for pushes never are. Python lacks a name for the flag
#: of Linux.
_NORESERVE = 0x4000 if sys.platform == "linux" else 0
#: As above: maps the pages writable without changing them (Linux 5.14).
_POPULATE_WRITE = 23

#: The layout of a `ResumeFile`.
_PAGE_BYTES = 4096
_WORDS, _MOST_AREAS = 64, 1 << 16
_COUNT = _WORDS - 1
_KIND, _OFFSET, _SIZE = range(3)
_HEADER_BYTES = _PAGE_BYTES + 3 * 8 * _MOST_AREAS


class Memory(Protocol):
    """Provides arrays that are zero when they are new."""

    def array(self, shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
        """Return the next array, C-contiguous. To get the same arrays again, request them in the same order."""


class OwnMemory:
    """Memory of this process, which is lost when the process ends."""

    def array(self, shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
        return np.zeros(shape, dtype)


class SizeOf:
    """Measures memory without allocating it: `bytes` is the size of the requested arrays."""

    def __init__(self) -> None:
        self.bytes = 0

    def array(self, shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
        """See `Memory`; the returned array has the shape, and one element for all."""
        self.bytes = _after(self.bytes, shape, dtype)
        return np.broadcast_to(np.zeros((), dtype), shape)


class MappedMemory:
    """Mapped memory, provided from its start on."""

    def __init__(self, mapping: mmap.mmap) -> None:
        self.mapping = mapping
        self._used = 0

    def array(self, shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
        """See `Memory`. Raises TypeError if the memory is used up."""
        first, self._used = self._used, _after(self._used, shape, dtype)
        return np.ndarray(shape, dtype, self.mapping, first)


class SharedMemory(MappedMemory):
    """Memory that a process shares with its forked children, and with a file also with later processes.

    Each process makes a `view` of its own, and requests the arrays from the first one on.
    """

    def __init__(self, size_bytes: int, file: Path | None = None) -> None:
        """Map `size_bytes`, which are zero unless an earlier process has written to `file`.

        The file is created if it is missing, and resized. Raises OSError.
        """
        if file is None:
            flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _NORESERVE
            super().__init__(mmap.mmap(-1, max(size_bytes, 1), flags=flags))
            return
        with file.open("a+b") as opened:
            os.ftruncate(opened.fileno(), max(size_bytes, 1))  # untouched pages take no memory
            super().__init__(mmap.mmap(opened.fileno(), max(size_bytes, 1)))

    def view(self) -> MappedMemory:
        """Return the same memory, provided from its start again."""
        return MappedMemory(self.mapping)


class Prefaulter:
    """Touches the first bytes of a memory from front to back, so that no later use waits for page faults.

    The contents stay. `left_bytes` are not touched yet.
    """

    def __init__(self, memory: Memory, size_bytes: int) -> None:
        self._map = memory.mapping if isinstance(memory, MappedMemory) else None
        self._at = 0
        self._end = 0 if self._map is None else min(size_bytes, len(self._map))

    @property
    def left_bytes(self) -> int:
        """The bytes that are not touched yet; 0 for `OwnMemory`, which is not allocated yet."""
        return self._end - self._at

    def touch(self, most_bytes: int) -> None:
        """Touch up to `most_bytes` more, in whole pages."""
        size = min(-(-most_bytes // mmap.PAGESIZE) * mmap.PAGESIZE, self.left_bytes)
        if self._map is None or size == 0:
            return
        try:
            self._map.madvise(_POPULATE_WRITE, self._at, size)
        except (OSError, ValueError, AttributeError):  # an older kernel, or another system
            for page in range(self._at, self._at + size, mmap.PAGESIZE):
                self._map[page] = self._map[page]
        self._at += size


def _after(used: int, shape: Sequence[int], dtype: DTypeLike) -> int:
    size_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    return used + -(-size_bytes // _ALIGNMENT) * _ALIGNMENT


class Kind(enum.IntEnum):
    """The use of an area."""

    FREE = 0
    DENSE = 1
    PUSHES = 2
    SPILLED = 3  # in another file, on disk


@dataclass(frozen=True, slots=True, eq=False)
class Area:
    """A piece of a file, from `offset` on. memory: uint8 [size], zero when it is new."""

    number: int
    memory: NDArray[np.uint8]
    mapping: mmap.mmap
    offset: int


class ResumeFile:
    """An anonymous file for state that grows, which the processes of a trainer pass on by its descriptor.

    It grows by areas, and the next process finds them by their kinds. It vanishes with the last process that has it
    open. words: int64 [63], the caller's; a store of one is atomic. Any thread may make and free areas.
    """

    def __init__(self, descriptor: int) -> None:
        """Map the file of another process. Raises OSError."""
        self.descriptor = descriptor
        header = np.frombuffer(mmap.mmap(descriptor, _HEADER_BYTES), np.int64)
        self.words: Ints = header[:_COUNT]
        self._count: Ints = header[_COUNT:_WORDS]
        self._table: Ints = header[_PAGE_BYTES // 8 :].reshape(_MOST_AREAS, 3)
        self._lock = threading.RLock()

    @classmethod
    def new(cls) -> ResumeFile:
        """Create an empty file. Raises OSError."""
        descriptor = os.memfd_create("cpr-kept")
        os.ftruncate(descriptor, _HEADER_BYTES)  # untouched pages take no memory
        return cls(descriptor)

    def areas(self, kind: Kind) -> Iterator[Area]:
        """Map the areas of a kind, in the order of their creation."""
        return (self._map(*each) for each in self.noted(kind))

    def noted(self, kind: Kind) -> Iterator[tuple[int, int, int]]:
        """The number, offset and size of each area of a kind, in that order."""
        for number in range(int(self._count[0])):
            found, offset, size = self._table[number].tolist()
            if found == kind:
                yield number, offset, size

    def grow(self, kind: Kind, size_bytes: int) -> Area:
        """Make another area. Raises OSError."""
        with self._lock:
            offset = os.fstat(self.descriptor).st_size
            os.ftruncate(self.descriptor, offset + -(-size_bytes // _PAGE_BYTES) * _PAGE_BYTES)
            number = self.note(kind, offset, size_bytes)
        return self._map(number, offset, size_bytes)

    def note(self, kind: Kind, offset: int, size_bytes: int) -> int:
        """Record an area, for example of another file, for the next process; return its number. Raises OSError."""
        with self._lock:
            number = int(self._count[0])
            if number == _MOST_AREAS:
                raise OSError(f"there are {_MOST_AREAS} areas already")
            self._table[number] = (kind, offset, size_bytes)
            self._count[0] = number + 1
            return number

    def free(self, area: Area) -> None:
        """Return the memory of an area to the system; its contents are lost."""
        self.forget(area.number)
        area.mapping.madvise(mmap.MADV_REMOVE)

    def forget(self, number: int) -> None:
        """Remove the record of an area."""
        self._table[number, _KIND] = Kind.FREE

    def _map(self, number: int, offset: int, size_bytes: int) -> Area:
        mapping = mmap.mmap(self.descriptor, size_bytes, offset=offset)
        return Area(number, np.frombuffer(mapping, np.uint8), mapping, offset)
