"""Buffers of rows outside of the arena: for parts of saves, and the redo record of a push."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from cpr_contract.limits import MAX_TRAINERS
from cpr_trainer.arrays import Floats, Ints, Values
from cpr_trainer.embedding.memory import Memory
from cpr_trainer.embedding.segments import Segment, take_rows

_NUMBER, _COUNT, _NOTE = range(3)
_ALIGNMENT = np.dtype(np.float32).itemsize


class RowBuffer:
    """A reusable buffer for rows with their optimizer state; it holds rows of one segment at a time.

    slots: int64 [size]. rows: [size, D], of the segment's type. state: float32 [size, W], W may be 0. The first `used`
    are filled.
    """

    def __init__(self, size: int, size_bytes: int) -> None:
        """Allocate slots for `size` rows, and `size_bytes` for them and their state: see `select_segment`."""
        self._slots: Ints = np.empty(size, np.int64)
        self._bytes: NDArray[np.uint8] = np.empty(size_bytes, np.uint8)
        self.slots = self._slots
        self.state: Floats = self._bytes[:0].view(np.float32).reshape(0, 1)
        self.rows: Values = self.state
        self.used = 0

    @classmethod
    def like(cls, segment: Segment, size: int) -> Self:
        """Return a buffer for `size` rows of a segment."""
        buffer = cls(size, size * segment.row_bytes)
        buffer.select_segment(segment)
        return buffer

    def select_segment(self, segment: Segment) -> None:
        """Empty the buffer, and take rows of this segment from here on."""
        size = min(len(self._slots), len(self._bytes) // segment.row_bytes)
        width = segment.state.shape[1]
        split, end = size * width * segment.state.itemsize, size * segment.row_bytes
        self.slots = self._slots[:size]
        # The state is first, so that its elements are aligned, whatever the size of those of rows.
        self.state = self._bytes[:split].view(segment.state.dtype).reshape(size, width)
        self.rows = self._bytes[split:end].view(segment.rows.dtype).reshape(size, segment.dim)
        self.used = 0

    @property
    def free(self) -> int:
        """The number of rows that it still takes."""
        return len(self.slots) - self.used

    @property
    def filled(self) -> tuple[Ints, Values, Floats]:
        """The slots, rows and state in the buffer."""
        return self.slots[: self.used], self.rows[: self.used], self.state[: self.used]

    def add(self, segment: Segment, slots: Ints) -> None:
        """Add the rows of a segment in these slots of the arena."""
        inside, at = self._reserve(slots), segment.within(slots)
        take_rows(segment.rows, at, self.rows[inside])
        take_rows(segment.state, at, self.state[inside])

    def add_run(self, segment: Segment, slots: Ints) -> None:
        """Add consecutive rows of a segment: those in `slots`, at least one."""
        self._copy(segment.rows, segment.state, slots, int(slots[0]) - segment.first)

    def move_last(self, count: int, into: RowBuffer) -> None:
        """Move the last `count` rows into another buffer, of the same segment."""
        first = self.used - count
        into._copy(self.rows, self.state, self.slots[first : self.used], first)
        self.used = first

    def sort(self) -> None:
        """Put the rows into the order of their slots."""
        order = np.argsort(self.slots[: self.used])
        self.slots[: self.used] = self.slots[order]
        self.rows[: self.used] = self.rows[order]
        self.state[: self.used] = self.state[order]

    def _copy(self, rows: Values, state: Floats, slots: Ints, first: int) -> None:
        inside, run = self._reserve(slots), slice(first, first + len(slots))
        self.rows[inside] = rows[run]
        self.state[inside] = state[run]

    def _reserve(self, slots: Ints) -> slice:
        assert len(slots) <= self.free, f"{len(slots)} rows for a buffer that takes {self.free}"
        inside = slice(self.used, self.used + len(slots))
        self.slots[inside] = slots
        self.used += len(slots)
        return inside


class Redo:
    """The redo record of a push, or of a merged step: the new contents of its rows, written before the rows themselves.

    A killed process has executed a prefix of its stores, on any processor. The record is complete once `number` is
    written, and the next process may copy it into the rows again, even if a part of them was already written.

    `number` is that of the push in it, counted from 1; 0: none. slots: int64 [n]. rows: bytes. state: float32 [w].
    Their beginnings hold the push: its slots, segment after segment, then of each segment its rows
    and their state. `note` is the caller's, of `NOTE_BYTES` at most.
    """

    #: A frame's header of each trainer.
    NOTE_BYTES = 128 * MAX_TRAINERS

    def __init__(self, memory: Memory, segments: Sequence[Segment]) -> None:
        """Allocate a record for a push of all rows of these segments."""
        rows_bytes = sum(_aligned(segment.rows.nbytes) for segment in segments)
        self._segments = tuple(segments)
        self._words: Ints = memory.array((8,), np.int64)
        self._note: NDArray[np.uint8] = memory.array((self.NOTE_BYTES,), np.uint8)
        self._slots: Ints = memory.array((sum(map(len, segments)),), np.int64)
        self._rows: NDArray[np.uint8] = memory.array((rows_bytes,), np.uint8)
        self._state: Floats = memory.array((sum(segment.state.size for segment in segments),), np.float32)

    @property
    def number(self) -> int:
        """The number of the push in the record."""
        return int(self._words[_NUMBER])

    @property
    def slots(self) -> Ints:
        """The slots of the push."""
        return self._slots[: self._words[_COUNT]]

    @property
    def note(self) -> bytes:
        """The caller's note."""
        return self._note[: self._words[_NOTE]].tobytes()

    def arrays(self, counts: Sequence[int]) -> list[tuple[Values, Floats]]:
        """Return the arrays of rows [k_b, D_b], in their type, and of state [k_b, W_b] for each segment of a push."""
        found, row, state = list[tuple[Values, Floats]](), 0, 0
        for count, segment in zip(counts, self._segments, strict=True):
            dim, width, dtype = segment.dim, segment.state.shape[1], segment.rows.dtype
            rows_end, state_end = row + count * dim * dtype.itemsize, state + count * width
            rows = self._rows[row:rows_end].view(dtype).reshape(count, dim)
            found.append((rows, self._state[state:state_end].reshape(count, width)))
            row, state = _aligned(rows_end), state_end
        return found

    def begin(self, slots: Ints, note: bytes) -> None:
        """Complete the record, with rows and state already in their arrays: from here on the push is not lost."""
        assert len(note) <= self.NOTE_BYTES, f"a note of {len(note)} bytes"
        self._slots[: len(slots)] = slots
        self._note[: len(note)] = np.frombuffer(note, np.uint8)
        self._words[_COUNT] = len(slots)
        self._words[_NOTE] = len(note)
        self._words[_NUMBER] += 1


def _aligned(size_bytes: int) -> int:
    """Return where values of any type may begin after this many bytes."""
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT
