"""Rows outside of the arena, on their way into or out of a save."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cpr_trainer.arrays import Floats, Ints


@dataclass(slots=True, eq=False)
class RowBuffer:
    """Room for rows with their optimizer state, kept for the next save.

    slots: int64 [size]. rows: float32 [size, D]. state: float32 [size, W], W may be 0. The first `used`
    are filled.
    """

    slots: Ints
    rows: Floats
    state: Floats
    used: int = 0

    @classmethod
    def like(cls, rows: Floats, state: Floats, size: int) -> RowBuffer:
        """Return room for `size` rows as wide as rows [n, D] and state [n, W]."""
        room, beside = (np.empty((size, like.shape[1]), np.float32) for like in (rows, state))
        return cls(np.empty(size, np.int64), room, beside)

    @property
    def room(self) -> int:
        """How many rows it still takes."""
        return len(self.slots) - self.used

    @property
    def filled(self) -> tuple[Ints, Floats, Floats]:
        """The slots, rows and state that it holds."""
        return self.slots[: self.used], self.rows[: self.used], self.state[: self.used]

    def add(self, rows: Floats, state: Floats, slots: Ints) -> None:
        """Copy the rows of rows [n, D] and state [n, W] in that lie at `slots`."""
        inside = self._room_for(slots)
        rows.take(slots, axis=0, out=self.rows[inside], mode="clip")  # the slots are valid; `raise` would copy twice
        state.take(slots, axis=0, out=self.state[inside], mode="clip")

    def add_run(self, rows: Floats, state: Floats, slots: Ints, first: int) -> None:
        """Copy the rows of rows [n, D] and state [n, W] in that follow one another from `first`: those of `slots`."""
        inside = self._room_for(slots)
        run = slice(first, first + len(slots))
        self.rows[inside] = rows[run]
        self.state[inside] = state[run]

    def move_last(self, count: int, into: RowBuffer) -> None:
        """Move the last `count` rows into another buffer."""
        first = self.used - count
        into.add_run(self.rows, self.state, self.slots[first : self.used], first)
        self.used = first

    def sort(self) -> None:
        """Put the rows into the order of their slots."""
        order = np.argsort(self.slots[: self.used])
        self.slots[: self.used] = self.slots[order]
        self.rows[: self.used] = self.rows[order]
        self.state[: self.used] = self.state[order]

    def _room_for(self, slots: Ints) -> slice:
        inside = slice(self.used, self.used + len(slots))
        self.slots[inside] = slots
        self.used += len(slots)
        return inside
