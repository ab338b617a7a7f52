"""Buffers of rows outside of the arena: for parts of saves, and the redo record of a push."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from cpr_contract.limits import MAX_TRAINERS
from cpr_trainer.arrays import Floats, Ints
from cpr_trainer.embedding.memory import Memory
from cpr_trainer.embedding.segments import Segment

_NUMBER, _COUNT, _NOTE = range(3)


class RowBuffer:
    """A reusable buffer for rows with their optimizer state; it holds rows of one segment at a time.

    slots: int64 [size]. rows: float32 [size, D]. state: float32 [size, W], W may be 0. The first `used` are filled.
    """

    def __init__(self, size: int, values: int) -> None:
        """Allocate slots for `size` rows and `values` float32 for them and their state: see `select_segment`."""
        self._slots: Ints = np.empty(size, np.int64)
        self._values: Floats = np.empty(values, np.float32)
        self.slots = self._slots
        self.rows = self.state = self._values[:0].reshape(0, 1)
        self.used = 0

    @classmethod
    def like(cls, segment: Segment, size: int) -> Self:
        """Return a buffer for `size` rows of a segment."""
        buffer = cls(size, size * segment.row_values)
        buffer.select_segment(segment)
        return buffer

    def select_segment(self, segment: Segment) -> None:
        """Empty the buffer, and take rows of this segment from here on."""
        size = min(len(self._slots), len(self._values) // segment.row_values)
        dim, split, end = segment.dim, size * segment.dim, size * segment.row_values
        self.slots = self._slots[:size]
        self.rows = self._values[:split].reshape(size, dim)
        self.state = self._values[split:end].reshape(size, segment.row_values - dim)
        self.used = 0

    @property
    def free(self) -> int:
        """The number of rows that it still takes."""
        return len(self.slots) - self.used

    @property
    def filled(self) -> tuple[Ints, Floats, Floats]:
        """The slots, rows and state in the buffer."""
        return self.slots[: self.used], self.rows[: self.used], self.state[: self.used]

    def add(self, segment: Segment, slots: Ints) -> None:
        """Add the rows of a segment in these slots of the arena."""
        inside, at = self._reserve(slots), segment.within(slots)
        segment.rows.take(at, axis=0, out=self.rows[inside], mode="clip")  # slots are valid; `raise` would copy twice
        segment.state.take(at, axis=0, out=self.state[inside], mode="clip")

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

    def _copy(self, rows: Floats, state: Floats, slots: Ints, first: int) -> None:
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

    `number` is that of the push in it, counted from 1; 0: none. slots: int64 [n]. rows: float32 [v]. state: float32
    [w]. Their beginnings hold the push: its slots, ascending if there are several segments, then of each segment its
    rows and their state. `note` is the caller's, of `NOTE_BYTES` at most.
    """

    #: A frame's header of each trainer.
    NOTE_BYTES = 128 * MAX_TRAINERS

    def __init__(self, memory: Memory, rows: int, values: int, state_values: int) -> None:
        """Allocate a record for a push of all rows, with this number of values, and of values in their state."""
        self._words: Ints = memory.array((8,), np.int64)
        self._note: NDArray[np.uint8] = memory.array((self.NOTE_BYTES,), np.uint8)
        self._slots: Ints = memory.array((rows,), np.int64)
        self._rows: Floats = memory.array((values,), np.float32)
        self._state: Floats = memory.array((state_values,), np.float32)

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

    def arrays(self, counts: Sequence[int], dims: Sequence[int], widths: Sequence[int]) -> list[tuple[Floats, Floats]]:
        """Return the arrays of rows [k_b, D_b] and state [k_b, W_b] for each segment's part of a push."""
        found, row, state = list[tuple[Floats, Floats]](), 0, 0
        for count, dim, width in zip(counts, dims, widths, strict=True):
            rows_end, state_end = row + count * dim, state + count * width
            rows = self._rows[row:rows_end].reshape(count, dim)
            found.append((rows, self._state[state:state_end].reshape(count, width)))
            row, state = rows_end, state_end
        return found

    def begin(self, slots: Ints, note: bytes) -> None:
        """Complete the record, with rows and state already in their arrays: from here on the push is not lost."""
        assert len(note) <= self.NOTE_BYTES, f"a note of {len(note)} bytes"
        self._slots[: len(slots)] = slots
        self._note[: len(note)] = np.frombuffer(note, np.uint8)
        self._words[_COUNT] = len(slots)
        self._words[_NOTE] = len(note)
        self._words[_NUMBER] += 1
