"""Route C: rows of the tables, each of them once, as trainers ask shards for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpr_trainer.arrays import Ints


@dataclass(frozen=True, slots=True, eq=False)
class UniqueRows:
    """Distinct rows in the order of their places, and so grouped by shard.

    places, numbers: int64 [u], see `Placement`. Shard i has those from bounds[i] to bounds[i + 1].
    """

    places: Ints
    numbers: Ints
    bounds: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.places)

    def on_shard(self, shard: int) -> slice:
        """Return where the rows of a shard lie."""
        return slice(self.bounds[shard], self.bounds[shard + 1])

    def shared_with(self, other: UniqueRows) -> NDArray[np.bool_]:
        """Return which of these rows are in `other` as well, bool [u]."""
        if not len(other):
            return np.zeros(len(self), np.bool_)
        nearest = np.searchsorted(other.places, self.places)
        shared: NDArray[np.bool_] = other.places[np.minimum(nearest, len(other) - 1)] == self.places
        return shared

    def select(self, mask: NDArray[np.bool_]) -> UniqueRows:
        """Return the rows where `mask` (bool [u]) is set."""
        kept = np.concatenate(([0], np.cumsum(mask)))
        return UniqueRows(self.places[mask], self.numbers[mask], tuple(kept[list(self.bounds)].tolist()))
