"""Rows outside of the arena, on their way into or out of a save."""

from __future__ import annotations

from typing import Self

import numpy as np

from cpr_trainer.arrays import Floats, Ints
from cpr_trainer.tables.segments import Segment


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
