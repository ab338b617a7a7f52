"""The nouns between data and training: a `Batch`, and the `Dataset` it is taken from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cpr_trainer.data.layout import Ints, Layout
from cpr_trainer.embedding.bags import Bags


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The n samples that one trainer trains in one step; n may be 0.

    dense: float32 [n, N], the N numeric features, transformed and ready for the network.
    ids: int64 [n, T], the row of each of the T tables, 0 <= ids[:, t] < rows of table t; bags if a table pools, or the
    model states features.
    labels: float32 [n], or [n, L] if so many are predicted: labels, 0 or 1, then targets.
    groups: str [n], the value of the group column, where the data was opened with one.
    """

    dense: NDArray[np.float32]
    ids: NDArray[np.int64] | Bags
    labels: NDArray[np.float32]
    groups: NDArray[np.object_] | None = None

    def __len__(self) -> int:
        return len(self.labels)


class Dataset(Protocol):
    """A finite set of samples in a fixed order, read by position. Safe to call from several threads."""

    @property
    def layout(self) -> Layout:
        """How its rows lie, one at least; some may turn out to be no samples."""

    def take(self, indices: Ints) -> Batch:
        """Return the samples at `indices` (int64 [n], each in [0, layout.rows), repeats allowed) in that order.

        Rows that are no samples are left out. Raises DataError.
        """

    def expect(self, blocks: Ints) -> None:
        """Read these blocks of `layout` ahead, in that order; those expected before and not begun are not needed."""
