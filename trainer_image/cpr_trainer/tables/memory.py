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


class SharedMemory:
    """Memory that a process shares with those that it forks: what one of them writes is there when it has ended.

    Each of them makes a `view` of its own, and asks for the arrays from the first one on.
    """

    def __init__(self, size_bytes: int) -> None:
        """Map `size_bytes`, all zero. Raises OSError."""
        self._map = mmap.mmap(-1, max(size_bytes, 1), flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _NORESERVE)
        self._used = 0

    def view(self) -> SharedMemory:
        """Return the same memory, to be given out from the start again."""
        again = object.__new__(SharedMemory)
        again._map, again._used = self._map, 0
        return again

    def array(self, shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
        """See `Memory`. Raises ValueError if there is no room left."""
        first, self._used = self._used, _after(self._used, shape, dtype)
        return np.ndarray(shape, dtype, self._map, first)


def _after(used: int, shape: Sequence[int], dtype: DTypeLike) -> int:
    size_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    return used + -(-size_bytes // _ALIGNMENT) * _ALIGNMENT
