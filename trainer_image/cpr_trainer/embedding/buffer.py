"""Rows outside of the arena: on their way into or out of a save, and in the redo record of a push."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from cpr_trainer.arrays import Floats, Ints
from cpr_trainer.embedding.memory import Memory
from cpr_trainer.embedding.segments import Segment


class RowBuffer:
    """Room for rows with their optimizer state, kept for the next save; all at one time are of one segment.

    slots: int64 [size]. rows: float32 [size, D]. state: float32 [size, W], W may be 0. The first `used` are filled.
    """

    def __init__(self, size: int, values: int) -> None:
        """Make room for `size` rows, as far as they and their state fit into `values` float32: see `turn_to`."""
        self._slots: Ints = np.empty(size, np.int64)
        self._values: Floats = np.empty(values, np.float32)
        self.slots = self._slots
        self.rows = self.state = self._values[:0].reshape(0, 1)
        self.used = 0

    @classmethod
    def like(cls, segment: Segment, size: int) -> Self:
        """Return room for `size` rows of a segment."""
        buffer = cls(size, size * segment.row_values)
        buffer.turn_to(segment)
        return buffer

    def turn_to(self, segment: Segment) -> None:
        """Take rows of this segment from here on; what was in it is gone."""
        size = min(len(self._slots), len(self._values) // segment.row_values)
        dim, split, end = segment.dim, size * segment.dim, size * segment.row_values
        self.slots = self._slots[:size]
        self.rows = self._values[:split].reshape(size, dim)
        self.state = self._values[split:end].reshape(size, segment.row_values - dim)
        self.used = 0

    @property
    def room(self) -> int:
        """How many rows it still takes."""
        return len(self.slots) - self.used

    @property
    def filled(self) -> tuple[Ints, Floats, Floats]:
        """The slots, rows and state that it holds."""
        return self.slots[: self.used], self.rows[: self.used], self.state[: self.used]

    def add(self, segment: Segment, slots: Ints) -> None:
        """Copy the rows of a segment in that lie in `slots` of the arena."""
        inside, at = self._room_for(slots), segment.within(slots)
        segment.rows.take(at, axis=0, out=self.rows[inside], mode="clip")  # they are valid; `raise` would copy twice
        segment.state.take(at, axis=0, out=self.state[inside], mode="clip")

    def add_run(self, segment: Segment, slots: Ints) -> None:
        """Copy rows in that follow one another in a segment: those in `slots`, one at least."""
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
        inside, run = self._room_for(slots), slice(first, first + len(slots))
        self.rows[inside] = rows[run]
        self.state[inside] = state[run]

    def _room_for(self, slots: Ints) -> slice:
        inside = slice(self.used, self.used + len(slots))
        self.slots[inside] = slots
        self.used += len(slots)
        return inside


# The redo record of a push: what it will leave in the rows, written before the rows are touched.
#
# A process that is killed has carried out a prefix of its stores, on any processor. So the record is whole once
# `number` has its number. Whoever finds it may put it into the rows again, however much of that was done before.


_NUMBER, _COUNT, _NOTE = range(3)


class Redo:
    """The record of one push at a time. `number` is that of the push in it, counted from 1; 0: none.

    slots: int64 [n]. rows: float32 [v]. state: float32 [w]. Their beginnings hold the push: its slots, ascending where
    there are several segments, then of each segment its rows and their state. `note` is the caller's, of `NOTE_BYTES`
    at most.
    """

    NOTE_BYTES = 256

    def __init__(self, memory: Memory, rows: int, values: int, state_values: int) -> None:
        """Make room for a push of all rows, which have so many values, and so many in their state."""
        self._words: Ints = memory.array((8,), np.int64)
        self._note: NDArray[np.uint8] = memory.array((self.NOTE_BYTES,), np.uint8)
        self._slots: Ints = memory.array((rows,), np.int64)
        self._rows: Floats = memory.array((values,), np.float32)
        self._state: Floats = memory.array((state_values,), np.float32)

    @property
    def number(self) -> int:
        """See above."""
        return int(self._words[_NUMBER])

    @property
    def slots(self) -> Ints:
        """The slots of the push."""
        return self._slots[: self._words[_COUNT]]

    @property
    def note(self) -> bytes:
        """What the caller noted."""
        return self._note[: self._words[_NOTE]].tobytes()

    def room(self, counts: Sequence[int], dims: Sequence[int], widths: Sequence[int]) -> list[tuple[Floats, Floats]]:
        """Return where the rows [k_b, D_b] and the state [k_b, W_b] of each segment's part of a push lie."""
        found, row, state = list[tuple[Floats, Floats]](), 0, 0
        for count, dim, width in zip(counts, dims, widths, strict=True):
            rows_end, state_end = row + count * dim, state + count * width
            rows = self._rows[row:rows_end].reshape(count, dim)
            found.append((rows, self._state[state:state_end].reshape(count, width)))
            row, state = rows_end, state_end
        return found

    def begin(self, slots: Ints, note: bytes) -> None:
        """The rows and the state are in their room: from here on the push will not be lost."""
        self._slots[: len(slots)] = slots
        self._note[: len(note)] = np.frombuffer(note, np.uint8)
        self._words[_COUNT] = len(slots)
        self._words[_NOTE] = len(note)
        self._words[_NUMBER] += 1
