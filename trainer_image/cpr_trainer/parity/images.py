"""What is coded: the bits of rows and of their optimizer state. XOR of bits is exact, whatever the order.

A row that never changed counts as zeros, whatever its first value: so parity of a new model is zero, costs nothing to
begin with, and needs nobody who knows first values. One byte a row says whether it ever changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from cpr_trainer.arrays import Ints
from cpr_trainer.parity.ring import Parts
from cpr_trainer.tables.arena import Arena
from cpr_trainer.tables.epochs import Epochs

Bits = NDArray[np.uint32]
Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """Some rows of one segment. rows: uint32 [n, D]. state: uint32 [n, W]. touched: uint8 [n], 1 where one changed."""

    rows: Bits
    state: Bits
    touched: Bytes

    @classmethod
    def zeros(cls, count: int, dim: int, width: int) -> Self:
        """Return `count` rows that never changed."""
        return cls(np.zeros((count, dim), np.uint32), np.zeros((count, width), np.uint32), np.zeros(count, np.uint8))

    def __len__(self) -> int:
        return len(self.touched)

    def __getitem__(self, at: slice) -> Image:
        return Image(self.rows[at], self.state[at], self.touched[at])

    @property
    def nbytes(self) -> int:
        """The size of its arrays."""
        return self.rows.nbytes + self.state.nbytes + self.touched.nbytes

    def add(self, other: Image) -> None:
        """Add, bit by bit, as many rows: a second time takes them away again."""
        for mine, theirs in self._beside(other):
            np.bitwise_xor(mine, theirs, out=mine)

    def add_at(self, at: NDArray[np.uint32], other: Image) -> None:
        """Add the n rows of `other` to those at `at` (uint32 [n], all different)."""
        for mine, theirs in self._beside(other):
            mine[at] ^= theirs

    def put(self, at: Ints, other: Image, which: Ints) -> None:
        """Replace the rows at `at` (int64 [n]) by those of `other` at `which` (int64 [n])."""
        for mine, theirs in self._beside(other):
            mine[at] = theirs[which]

    def copy(self) -> Image:
        """Return it with arrays of its own."""
        return Image(self.rows.copy(), self.state.copy(), self.touched.copy())

    def _beside(self, other: Image) -> tuple[tuple[NDArray[np.unsignedinteger], NDArray[np.unsignedinteger]], ...]:
        return (self.rows, other.rows), (self.state, other.state), (self.touched, other.touched)


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """A run of an arena's rows in one segment, as they are now; nothing is copied. rows: uint32 [n, D].

    state: uint32 [n, W]. `first` is the slot of the first.
    """

    rows: Bits
    state: Bits
    first: int
    epochs: Epochs

    @classmethod
    def of(cls, arena: Arena, segment: int, first: int, end: int) -> Self:
        """Return the rows [first, end) of a segment."""
        mine = arena.segments[segment]
        rows, state = (values[first:end].view(np.uint32) for values in (mine.rows, mine.state))
        return cls(rows, state, mine.first + first, arena.epochs)

    @classmethod
    def of_part(cls, arena: Arena, parts: Parts, part: int, segment: int) -> Self:
        """Return a part's rows of a segment."""
        return cls.of(arena, segment, *parts.span(part, segment, len(arena.segments[segment])))

    def __len__(self) -> int:
        return len(self.rows)

    def touched(self, first: int, end: int) -> Ints:
        """Return which of the rows [first, end) ever changed, ascending."""
        return np.flatnonzero(self.epochs.ever_changed(slice(self.first + first, self.first + end))) + first

    def read(self, at: Ints, to: Image) -> None:
        """Put the rows at `at` (int64 [n]) into `to`, which has room for n."""
        changed = self.epochs.ever_changed(at + self.first)
        # They are valid: the mode `raise` would copy twice.
        self.rows.take(at, axis=0, out=to.rows, mode="clip")
        self.state.take(at, axis=0, out=to.state, mode="clip")
        to.touched[:] = changed
        if not changed.all():
            to.rows[~changed], to.state[~changed] = 0, 0

    def read_run(self, first: int, end: int, to: Image) -> None:
        """Put the rows [first, end) into `to`, which has room for as many."""
        changed = self.epochs.ever_changed(slice(self.first + first, self.first + end))
        to.rows[...], to.state[...], to.touched[...] = self.rows[first:end], self.state[first:end], changed
        if not changed.all():
            to.rows[~changed], to.state[~changed] = 0, 0

    def write(self, first: int, image: Image) -> None:
        """Give rows the bits of an image, from `first` on; those that never changed there stay as they are.

        The others count as changed in the present epoch. Raises ValueError if there are more of them than rows.
        """
        end = first + len(image)
        if end <= len(self) and image.touched.all():  # a run is copied several times as fast
            self.rows[first:end], self.state[first:end] = image.rows, image.state
            self.epochs.note(slice(self.first + first, self.first + end))
            return
        which = np.flatnonzero(image.touched)
        at = which + first
        if len(at) and int(at[-1]) >= len(self):
            raise ValueError(f"{int(at[-1]) + 1} rows do not fit into {len(self)}")
        self.rows[at], self.state[at] = image.rows[which], image.state[which]
        self.epochs.note(at + self.first)
