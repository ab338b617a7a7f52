"""How the rows of a dataset lie: in blocks, each of which is read as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The blocks of a dataset, in the order of its rows.

    starts: int64 [b + 1]; block i holds the rows from starts[i] to starts[i + 1], one at least. units: int64 [b],
    ascending; blocks of one unit are read one after the other, as those of a compressed file have to be.
    """

    starts: Ints
    units: Ints

    @classmethod
    def of(cls, sizes: Sequence[int], units: Sequence[int]) -> Self:
        """Return the layout of blocks of so many rows each, in these units."""
        starts = np.concatenate(([0], np.cumsum(np.array(sizes, np.int64))))
        return cls(starts, np.array(units, np.int64))

    @classmethod
    def whole(cls, rows: int) -> Self:
        """Return the layout of rows that may be read in any order at the same cost: one block."""
        return cls.of([rows], [0])

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.starts[-1])

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return len(self.units)

    def blocks_of(self, rows: Ints) -> Ints:
        """Return the block of each row, int64 of the same shape."""
        return np.searchsorted(self.starts, rows, side="right").astype(np.int64) - 1

    def first(self, rows: int) -> Self:
        """Return the layout of the first `rows` rows, 1 at least: blocks keep their numbers."""
        blocks = int(np.searchsorted(self.starts, rows, side="left"))
        return type(self)(np.minimum(self.starts[: blocks + 1], rows), self.units[:blocks])
