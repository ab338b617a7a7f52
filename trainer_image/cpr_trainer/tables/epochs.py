"""When each row of an arena last changed: from it follows what a save has to hold. One byte a row."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cpr_trainer.arrays import Ints
from cpr_trainer.tables.memory import Memory, OwnMemory

#: Seven bits count epochs; the eighth is set while a priority save has yet to read a row that it chose.
_CHOSEN = np.uint8(0x80)
_LAST = 0x7F


class Epochs:
    """`of`: uint8 [n], the epoch in which each row last changed; 0 for one that has its first value still.

    `now` is the epoch that changes fall into. The rows changed since an earlier save are those of a later epoch. A save
    that fails forgets nothing, because nobody will ask for the rows changed since it.
    """

    def __init__(self, size: int, memory: Memory | None = None) -> None:
        self.of: NDArray[np.uint8] = (memory or OwnMemory()).array((size,), np.uint8)
        self.now = 1

    def note(self, slots: Ints | slice) -> None:
        """Rows change now."""
        self.of[slots] = self.now

    def end(self) -> int:
        """End the present epoch, in no time at all, and return it. Raises OverflowError after the last: `fold`."""
        if self.now == _LAST:
            raise OverflowError(f"{_LAST} epochs are over")
        self.now += 1
        return self.now - 1

    @property
    def used_up(self) -> bool:
        """Whether the present epoch is the last."""
        return self.now == _LAST

    def fold(self) -> None:
        """Count from the start: all that is known of a row hereafter is whether it ever changed."""
        np.minimum(self.of, 1, out=self.of)
        self.now = 2

    def clear(self) -> None:
        """No row has changed: all have their first values, or are about to be loaded."""
        self.of[:] = 0
        self.now = 1

    @property
    def changed_rows(self) -> int:
        """How many rows ever changed."""
        return int(np.count_nonzero(self.of))

    def ever_changed(self, slots: Ints | slice) -> NDArray[np.bool_]:
        """Whether each of these rows ever changed."""
        changed: NDArray[np.bool_] = (self.of[slots] & _LAST) != 0
        return changed

    def changed(self, since: int, until: int, first: int, last: int) -> Ints:
        """Return the slots in [first, last) whose rows changed after epoch `since` and not after `until`."""
        epochs = self.of[first:last]
        return np.flatnonzero((epochs > since) & (epochs <= until)) + first

    def choose(self, slots: Ints) -> None:
        """Note that a priority save has to read these rows."""
        self.of[slots] |= _CHOSEN

    def chosen(self, slots: Ints) -> NDArray[np.bool_]:
        """Whether each of these rows waits to be read, and has not changed since."""
        return self.of[slots] >= _CHOSEN

    def release(self, slots: Ints) -> None:
        """These rows are read, or need not be any more."""
        self.of[slots] &= ~_CHOSEN

    def release_all(self) -> None:
        """No priority save has any row to read."""
        self.of &= ~_CHOSEN
