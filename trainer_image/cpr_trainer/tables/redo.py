"""The redo record of a push: what it will leave in the rows, written before the rows are touched.

A process that is killed has carried out a prefix of its stores, on any processor. So the record is whole once `number`
has its number. Whoever finds it may put it into the rows again, however much of that was done before.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cpr_trainer.arrays import Floats, Ints
from cpr_trainer.tables.memory import Memory

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
