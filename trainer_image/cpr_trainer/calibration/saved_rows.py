"""The rows as they were last saved: what a lost shard comes back with."""

from __future__ import annotations

import numpy as np

from cpr_trainer.arrays import Ints
from cpr_trainer.tables.arena import Arena

#: Slots of an arena: a range of them, or int64 [k], all different.
Slots = slice | Ints


class SavedRows:
    """The newest save of every row of an arena with its optimizer state, and how often it was updated since.

    Which rows are saved when is for the caller to say: all of a shard at a cut, or the rows that matter most between
    two. Nothing saved yet means the state at the time this was made. Holds a second arena and 4 bytes a row.

    pending: int32 [n], updates of each row since its save.
    """

    def __init__(self, arena: Arena) -> None:
        self._live_and_saved = tuple((live, live.copy()) for live in (arena.rows, arena.state))
        self.pending = np.zeros(len(arena.rows), np.int32)

    def note(self, slots: Ints) -> None:
        """Count an update of each row in `slots`, int64 [k], all different."""
        self.pending[slots] += 1

    def save(self, slots: Slots) -> None:
        """Save rows as they are now."""
        for live, saved in self._live_and_saved:
            saved[slots] = live[slots]
        self.pending[slots] = 0

    def restore(self, slots: Slots) -> int:
        """Put rows back to their saves and return how many updates are lost with that."""
        for live, saved in self._live_and_saved:
            live[slots] = saved[slots]
        lost = int(self.pending[slots].sum())
        self.pending[slots] = 0
        return lost
