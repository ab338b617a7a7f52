"""Where the arrays of an arena come from: memory of this process alone, or memory that outlives it."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

#: Arrays begin where a line of the processor's cache does.
_ALIGNMENT = 64
#: Pages count once they are touched, not before: most of what is set aside for pushes never is. Python has no name for
#: the flag; the value is that of Linux.
_NORESERVE = 0x4000 if sys.platform == "linux" else 0
#: As above: maps the pages in, writable, as if each had been written to, and changes nothing in them (Linux 5.14).
_POPULATE_WRITE = 23


class Memory(Protocol):
    """Gives out arrays that are zero when they are new."""

    def array(self, shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
        """Return the next array, C-contiguous. Who asks for the same arrays again must ask in the same order."""
        ...


class OwnMemory:
    """Memory of this process: it is gone when the process ends."""

    def array(self, shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
        """See `Memory`."""
        return np.zeros(shape, dtype)


class SizeOf:
    """Memory that is not there: `bytes` says how much the arrays would take that were asked for."""

    def __init__(self) -> None:
        self.bytes = 0

    def array(self, shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
        """See `Memory`; what is returned has the shape, and one element for all."""
        self.bytes = _after(self.bytes, shape, dtype)
        return np.broadcast_to(np.zeros((), dtype), shape)


class MappedMemory:
    """Memory that is mapped, given out from its start on."""

    def __init__(self, mapping: mmap.mmap) -> None:
        self.mapping = mapping
        self._used = 0

    def array(self, shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
        """See `Memory`. Raises TypeError if there is no room left."""
        first, self._used = self._used, _after(self._used, shape, dtype)
        return np.ndarray(shape, dtype, self.mapping, first)


class SharedMemory(MappedMemory):
    """Memory that a process shares with those that it forks: what one of them writes is there when it has ended.

    Each of them makes a `view` of its own, and asks for the arrays from the first one on.
    """

    def __init__(self, size_bytes: int) -> None:
        """Map `size_bytes`, all zero. Raises OSError."""
        super().__init__(mmap.mmap(-1, max(size_bytes, 1), flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _NORESERVE))

    def view(self) -> MappedMemory:
        """Return the same memory, to be given out from the start again."""
        return MappedMemory(self.mapping)


class Toucher:
    """Touches the first bytes of a memory from front to back, so that no use of them waits for the machine's pages.

    What is in them stays. `left_bytes` are still to be touched.
    """

    def __init__(self, memory: Memory, size_bytes: int) -> None:
        self._map = memory.mapping if isinstance(memory, MappedMemory) else None
        self._at = 0
        self._end = 0 if self._map is None else min(size_bytes, len(self._map))

    @property
    def left_bytes(self) -> int:
        """See above; 0 for memory of one process alone, which nobody has yet."""
        return self._end - self._at

    def touch(self, most_bytes: int) -> None:
        """Touch up to so many more, in whole pages."""
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
