"""The nouns between data and training: a `Batch`, and the `Dataset` it is taken from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The n samples that one trainer trains in one step; n may be 0.

    dense: float32 [n, 13], transformed and ready for the bottom network.
    ids: int64 [n, T], the row of each of the T tables, 0 <= ids[:, t] < rows of table t.
    labels: float32 [n], 0 or 1.
    """

    dense: NDArray[np.float32]
    ids: NDArray[np.int64]
    labels: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.labels)


class Dataset(Protocol):
    """A finite set of samples in a fixed order, read by position. Safe to call from several threads."""

    @property
    def rows(self) -> int:
        """Number of samples; at least 1."""

    def take(self, indices: NDArray[np.int64]) -> Batch:
        """Return the samples at `indices` (int64 [n], each in [0, rows), repeats allowed) in that order."""
