"""The assignment of parts to the shards that hold their parity, and the bits of rows and their state that are coded.

XOR of bits is exact in any order. A row that never changed counts as zeros, whatever its first value: parity of a new
model is zero, costs nothing at first, and is independent of first values. One byte a row marks changed rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from cpr_trainer.arrays import Ints
from cpr_trainer.embedding.arena import Arena
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.embedding.segments import Epochs, take_rows

#: Values as whole numbers of their size: uint32 for float32, uint16 for bfloat16.
Bits = NDArray[np.uint32] | NDArray[np.uint16]
Bytes = NDArray[np.uint8]

#: Rows that are changed at a time: intermediate results stay in the cache.
_BLOCK = 1024


@dataclass(frozen=True, slots=True)
class Ring:
    """The shards in a ring, with parity of `data_shards` parts each. Raises ValueError if there are too few shards.

    Each shard divides the rows of each of its segments into k = `data_shards` equal *parts*, by slot. Shard h keeps the
    XOR of k parts: part 0 of the shard k before it, part 1 of the next, up to part k - 1 of the one right before it.
    These k parts and their parity are a *stripe*: they lie on k + 1 different shards, for any number of shards above k.
    Each shard is a member of k stripes and the holder of one. Hot rows are spread evenly over slots, so all parts are
    equally busy.
    """

    shards: int
    data_shards: int

    def __post_init__(self) -> None:
        if not 1 <= self.data_shards < self.shards:
            raise ValueError(f"parity of {self.data_shards} shards needs more of them than that, not {self.shards}")

    def holder(self, shard: int, part: int) -> int:
        """Return the shard that keeps the parity of a part."""
        return (shard + self.data_shards - part) % self.shards

    def holders(self, shard: int) -> tuple[int, ...]:
        """Return the holders of the parity of a shard's parts, part after part."""
        return tuple(self.holder(shard, part) for part in range(self.data_shards))

    def members(self, holder: int) -> tuple[int, ...]:
        """Return the members of the stripe of `holder`, which has part i of the i-th one."""
        return tuple((holder - self.data_shards + part) % self.shards for part in range(self.data_shards))


class PartShape(NamedTuple):
    """A part in one segment: `rows` rows of `dim` values of `value_bytes` bytes, with `width` float32 of state."""

    rows: int
    dim: int
    width: int
    value_bytes: int = 4

    @property
    def row_bytes(self) -> int:
        """The size of a coded row."""
        return self.dim * self.value_bytes + 4 * self.width + 1


@dataclass(frozen=True, slots=True)
class Parts:
    """The sizes of parts: sizes[b] rows in segment b, the same on all shards.

    The last part of a shard may have fewer rows, or none. Missing rows count as zeros.
    """

    data_shards: int
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, placement: Placement, data_shards: int) -> Self:
        """Return the parts of a placement's shards."""
        largest = map(max, zip(*(placement.sizes(shard) for shard in range(placement.shards)), strict=True))
        return cls(data_shards, tuple(-(-rows // data_shards) for rows in largest))

    def shapes(self, arena: Arena) -> list[PartShape]:
        """Return the shapes of the largest part, by segment."""
        pairs = zip(self.sizes, arena.segments, strict=True)
        return [PartShape(rows, each.dim, each.state.shape[1], each.rows.itemsize) for rows, each in pairs]

    def span(self, part: int, segment: int, rows: int) -> tuple[int, int]:
        """Return the first row of a part, and the one after the last, in a segment of `rows` rows."""
        size = self.sizes[segment]
        return min(part * size, rows), min((part + 1) * size, rows)


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """Coded rows of one segment. rows: [n, D]. state: uint32 [n, W]. touched: uint8 [n], 1 for changed rows."""

    rows: Bits
    state: NDArray[np.uint32]
    touched: Bytes

    @classmethod
    def zeros(cls, count: int, dim: int, width: int, value_bytes: int = 4) -> Self:
        """Return `count` rows that never changed."""
        rows: Bits = np.zeros((count, dim), f"u{value_bytes}")
        return cls(rows, np.zeros((count, width), np.uint32), np.zeros(count, np.uint8))

    def __len__(self) -> int:
        return len(self.touched)

    def __getitem__(self, at: slice) -> Image:
        return Image(self.rows[at], self.state[at], self.touched[at])

    @property
    def nbytes(self) -> int:
        """The size of its arrays."""
        return self.rows.nbytes + self.state.nbytes + self.touched.nbytes

    def add(self, other: Image) -> None:
        """XOR as many rows into these: a second time removes them again."""
        for mine, theirs in self._pairs(other):
            np.bitwise_xor(mine, theirs, out=mine)

    def add_at(self, at: NDArray[np.uint32], other: Image) -> None:
        """XOR the n rows of `other` into those at `at` (uint32 [n], distinct)."""
        for first in range(0, len(at), _BLOCK):
            rows = at[first : first + _BLOCK].astype(np.int64)  # once, instead of for each array below
            for mine, theirs in self._pairs(other[first : first + _BLOCK]):
                now = mine.take(rows, axis=0)
                np.bitwise_xor(now, theirs, out=now)
                mine[rows] = now

    def put(self, at: Ints, other: Image, which: Ints) -> None:
        """Replace the rows at `at` (int64 [n]) by those of `other` at `which` (int64 [n])."""
        for mine, theirs in self._pairs(other):
            mine[at] = theirs[which]

    def copy(self) -> Image:
        """Return a copy."""
        return Image(self.rows.copy(), self.state.copy(), self.touched.copy())

    def _pairs(self, other: Image) -> tuple[tuple[NDArray[np.unsignedinteger], NDArray[np.unsignedinteger]], ...]:
        return (self.rows, other.rows), (self.state, other.state), (self.touched, other.touched)


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """A view of consecutive rows of an arena in one segment. rows: [n, D]. state: uint32 [n, W].

    `first` is the slot of the first.
    """

    rows: Bits
    state: NDArray[np.uint32]
    first: int
    epochs: Epochs

    @classmethod
    def of_part(cls, arena: Arena, parts: Parts, part: int, segment: int) -> Self:
        """Return a part's rows of a segment."""
        mine = arena.segments[segment]
        first, end = parts.span(part, segment, len(mine))
        rows: Bits = mine.rows[first:end].view(f"u{mine.rows.itemsize}")
        return cls(rows, mine.state[first:end].view(np.uint32), mine.first + first, arena.epochs)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> PartShape:
        """The shape of the rows."""
        return PartShape(len(self), self.rows.shape[1], self.state.shape[1], self.rows.itemsize)

    def zeros(self, count: int) -> Image:
        """Return `count` rows of the same shape that never changed."""
        return Image.zeros(count, *self.shape[1:])

    def touched(self, first: int, end: int) -> Ints:
        """Return those of the rows [first, end) that ever changed, ascending."""
        return np.flatnonzero(self.epochs.ever_changed(slice(self.first + first, self.first + end))) + first

    def read(self, at: Ints, to: Image) -> None:
        """Copy the rows at `at` (int64 [n]) into `to`, an image of n rows."""
        changed = self.epochs.ever_changed(at + self.first)
        take_rows(self.rows, at, to.rows)
        take_rows(self.state, at, to.state)
        to.touched[:] = changed
        if not changed.all():
            to.rows[~changed], to.state[~changed] = 0, 0

    def read_run(self, first: int, end: int, to: Image) -> None:
        """Copy the rows [first, end) into `to`, an image of as many."""
        changed = self.epochs.ever_changed(slice(self.first + first, self.first + end))
        to.rows[...], to.state[...], to.touched[...] = self.rows[first:end], self.state[first:end], changed
        if not changed.all():
            to.rows[~changed], to.state[~changed] = 0, 0

    def write(self, first: int, image: Image) -> None:
        """Copy the changed rows of an image into the rows from `first` on; the others stay.

        The copied ones count as changed in the current epoch. Raises ValueError if there are more than rows.
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
