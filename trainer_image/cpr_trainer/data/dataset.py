"""The types between data and training: a `Batch`, the `Dataset` that returns it, and the `Layout` of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from cpr_contract.spec import DataSpec
from cpr_trainer.arrays import Ints
from cpr_trainer.embedding.bags import Bags

#: The rows that are read together, and ahead, of data that is not shuffled.
_PREFETCH_ROWS = 2**16


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The n samples that one trainer trains in one step; n may be 0.

    dense: float32 [n, N], the N numeric features, transformed and ready for the network.
    ids: int64 [n, T], the row of each of the T tables, 0 <= ids[:, t] < rows of table t; bags if a table pools, or the
    model states features.
    labels: float32 [n], or [n, L] if the model predicts L values: labels, 0 or 1, then targets.
    groups: str [n], the value of the group column, if the data was opened with one.
    sample_weights: float32 [n], 0 or more; None if all samples have the weight 1.
    """

    dense: NDArray[np.float32]
    ids: NDArray[np.int64] | Bags
    labels: NDArray[np.float32]
    groups: NDArray[np.object_] | None = None
    sample_weights: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The blocks of a dataset, in the order of its rows. A block is read as one.

    starts: int64 [b + 1]; block i holds the rows from starts[i] to starts[i + 1], at least one. units: int64 [b],
    ascending; blocks of one unit have to be read one after the other, as those of a compressed file.
    """

    starts: Ints
    units: Ints

    def __post_init__(self) -> None:
        assert len(self.starts) == len(self.units) + 1, f"{len(self.starts)} bounds of {len(self.units)} blocks"
        assert (np.diff(self.starts) > 0).all(), "a block has no row"
        assert (np.diff(self.units) >= 0).all(), "units are not ascending"

    @classmethod
    def of(cls, sizes: Sequence[int], units: Sequence[int]) -> Self:
        """Return the layout of blocks with these numbers of rows, in these units."""
        starts = np.concatenate(([0], np.cumsum(np.array(sizes, np.int64))))
        return cls(starts, np.array(units, np.int64))

    @classmethod
    def whole(cls, rows: int) -> Self:
        """Return the layout of rows that cost the same in any order: one block."""
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
        """Return the layout of the first `rows` rows, at least 1: blocks keep their numbers."""
        blocks = int(np.searchsorted(self.starts, rows, side="left"))
        return type(self)(np.minimum(self.starts[: blocks + 1], rows), self.units[:blocks])


def window_rows(data: DataSpec) -> int:
    """Return the rows of a window: those that are shuffled together, or read ahead if rows keep their order."""
    return data.shuffle_rows or max(_PREFETCH_ROWS, data.batch_size)


class Dataset(Protocol):
    """A finite set of samples in a fixed order, read by position. Safe to call from several threads."""

    @property
    def layout(self) -> Layout:
        """The blocks of its rows. It has at least one row, and bad rows among them are no samples."""

    def take(self, indices: Ints) -> Batch:
        """Return the samples at `indices` (int64 [n], each in [0, layout.rows), repeats allowed) in that order.

        Bad rows are left out. Raises DataError.
        """

    def prefetch(self, blocks: Ints) -> None:
        """Read these blocks of `layout` next, in that order; cancel earlier requests that have not begun."""
