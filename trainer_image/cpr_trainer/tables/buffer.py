"""Rows outside of the arena, on their way into or out of a save."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]


@dataclass(slots=True, eq=False)
class RowBuffer:
    """Room for rows with their optimizer state, kept for the next save.

    slots: int64 [size]. rows: float32 [size, D]. state: float32 [size], or None with an optimizer that has none. The
    first `used` are filled.
    """

    slots: Ints
    rows: Tensor
    state: Tensor | None
    used: int = 0

    @classmethod
    def like(cls, rows: Tensor, state: Tensor | None, size: int) -> RowBuffer:
        """Return room for `size` rows of the width of `rows` [n, D], with state if there is any."""
        room = torch.empty(size, rows.shape[1])
        return cls(np.empty(size, np.int64), room, None if state is None else torch.empty(size))

    @property
    def room(self) -> int:
        """How many rows it still takes."""
        return len(self.slots) - self.used

    @property
    def filled(self) -> tuple[Ints, Tensor, Tensor | None]:
        """The slots, rows and state that it holds."""
        state = None if self.state is None else self.state[: self.used]
        return self.slots[: self.used], self.rows[: self.used], state

    def add(self, rows: Tensor, state: Tensor | None, slots: Ints) -> None:
        """Copy the rows of rows [n, D] and state [n] in that lie at `slots`."""
        inside = self._room_for(slots)
        places = torch.from_numpy(slots)
        torch.index_select(rows, 0, places, out=self.rows[inside])
        if state is not None and self.state is not None:
            torch.index_select(state, 0, places, out=self.state[inside])

    def add_run(self, rows: Tensor, state: Tensor | None, slots: Ints, first: int) -> None:
        """Copy the rows of rows [n, D] and state [n] in that follow one another from `first`: those of `slots`."""
        inside = self._room_for(slots)
        run = slice(first, first + len(slots))
        self.rows[inside] = rows[run]
        if state is not None and self.state is not None:
            self.state[inside] = state[run]

    def move_last(self, count: int, into: RowBuffer) -> None:
        """Move the last `count` rows into another buffer."""
        first = self.used - count
        into.add_run(self.rows, self.state, self.slots[first : self.used], first)
        self.used = first

    def sort(self) -> None:
        """Put the rows into the order of their slots."""
        order = np.argsort(self.slots[: self.used])
        places = torch.from_numpy(order)
        self.slots[: self.used] = self.slots[order]
        self.rows[: self.used] = self.rows[places]
        if self.state is not None:
            self.state[: self.used] = self.state[places]

    def _room_for(self, slots: Ints) -> slice:
        inside = slice(self.used, self.used + len(slots))
        self.slots[inside] = slots
        self.used += len(slots)
        return inside
