"""Memory that outlives the processes that use it, and grows while they do: a file in no folder.

Where a process cannot know beforehand how much it will keep, a mapping that it was born with is no help: this file
grows by areas, and the next process finds them by their kinds. It is gone with the last process that holds it open.
"""

from __future__ import annotations

import enum
import mmap
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpr_trainer.arrays import Ints

_PAGE_BYTES = 4096
_WORDS, _MOST_AREAS = 64, 1 << 16
_COUNT = _WORDS - 1
_KIND, _OFFSET, _SIZE = range(3)
_HEADER_BYTES = _PAGE_BYTES + 3 * 8 * _MOST_AREAS


class Kind(enum.IntEnum):
    """What an area is for."""

    FREE = 0
    DENSE = 1
    PUSHES = 2


@dataclass(frozen=True, slots=True, eq=False)
class Area:
    """A piece of the file. memory: uint8 [size], zero when it is new."""

    number: int
    memory: NDArray[np.uint8]
    mapping: mmap.mmap


class KeptFile:
    """The file of this descriptor, mapped by this process.

    words: int64 [63], the caller's; each of them is stored in one go. Any thread may make and free areas.
    """

    def __init__(self, descriptor: int) -> None:
        """Map what another process has made. Raises OSError."""
        self.descriptor = descriptor
        header = np.frombuffer(mmap.mmap(descriptor, _HEADER_BYTES), np.int64)
        self.words: Ints = header[:_COUNT]
        self._count: Ints = header[_COUNT:_WORDS]
        self._table: Ints = header[_PAGE_BYTES // 8 :].reshape(_MOST_AREAS, 3)
        self._lock = threading.Lock()

    @classmethod
    def new(cls) -> KeptFile:
        """Make an empty one. Raises OSError."""
        descriptor = os.memfd_create("cpr-kept")
        os.ftruncate(descriptor, _HEADER_BYTES)  # what is not touched takes no memory
        return cls(descriptor)

    def areas(self, kind: Kind) -> Iterator[Area]:
        """Map those of a kind, in the order in which they were made."""
        for number in range(int(self._count[0])):
            found, offset, size = self._table[number].tolist()
            if found == kind:
                yield self._map(number, offset, size)

    def grow(self, kind: Kind, size_bytes: int) -> Area:
        """Make another area. Raises OSError."""
        with self._lock:
            number, offset = int(self._count[0]), os.fstat(self.descriptor).st_size
            if number == _MOST_AREAS:
                raise OSError(f"there are {_MOST_AREAS} areas already")
            os.ftruncate(self.descriptor, offset + -(-size_bytes // _PAGE_BYTES) * _PAGE_BYTES)
            self._table[number] = (kind, offset, size_bytes)
            self._count[0] = number + 1
        return self._map(number, offset, size_bytes)

    def free(self, area: Area) -> None:
        """Give the memory of an area back to the machine; what is in it is lost."""
        self._table[area.number, _KIND] = Kind.FREE
        area.mapping.madvise(mmap.MADV_REMOVE)

    def _map(self, number: int, offset: int, size_bytes: int) -> Area:
        mapping = mmap.mmap(self.descriptor, size_bytes, offset=offset)
        return Area(number, np.frombuffer(mapping, np.uint8), mapping)
