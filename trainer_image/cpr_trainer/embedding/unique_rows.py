"""The rows that a batch or a frame names, each once, in the order of a placement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from cpr_trainer.arrays import Ints
from cpr_trainer.embedding.placement import Placement


@dataclass(frozen=True, slots=True, eq=False)
class UniqueRows:
    """Distinct rows in the order of their places, and so grouped by shard, and on each by band: by cells.

    places, numbers: int64 [u], see `Placement`. Band b of shard i has those from bounds[i bands + b] to the next bound.
    In a band of dynamic tables a number is the bits of a key, and a place is the first of its cell, plus the place of
    the key's table in the band: their slots are known to their shard alone. Keys of a place ascend as uint64.
    """

    places: Ints
    numbers: Ints
    bounds: tuple[int, ...]
    bands: int = 1

    @classmethod
    def of(cls, placement: Placement, places: Ints, numbers: Ints) -> Self:
        """Return rows by their places, int64 [u] ascending, and numbers, int64 [u]."""
        return cls(places, numbers, tuple(np.searchsorted(places, placement.cells).tolist()), placement.bands)

    def __len__(self) -> int:
        return len(self.places)

    def on_shard(self, shard: int) -> slice:
        """Return where the rows of a shard lie."""
        return slice(self.bounds[shard * self.bands], self.bounds[(shard + 1) * self.bands])

    @property
    def shards(self) -> int:
        """The number of shards there are."""
        return (len(self.bounds) - 1) // self.bands

    def cells(self, band: int) -> tuple[slice, ...]:
        """Return where the rows of a band lie, shard after shard."""
        firsts, ends = self.bounds[band :: self.bands], self.bounds[band + 1 :: self.bands]
        return tuple(map(slice, firsts[: self.shards], ends))

    def of_band(self, values: NDArray[Any], band: int) -> NDArray[Any]:
        """Return those of values [u, ...], one for each row, that belong to the rows of a band."""
        return values if self.bands == 1 else np.concatenate([values[cell] for cell in self.cells(band)])

    def extents(self, dims: Sequence[int]) -> tuple[int, ...]:
        """Return how many values there are before each cell, and in all, where rows of band b have dims[b].

        Bands of cells need no dim, because none of these rows are theirs.
        """
        all_dims = np.asarray([*dims, *[0] * (self.bands - len(dims))], np.int64)
        sizes = np.diff(self.bounds) * np.tile(all_dims, self.shards)
        return (0, *np.cumsum(sizes).tolist())

    def tables_of_keys(self, placement: Placement, band: int) -> Ints:
        """Return the place in a band of dynamic tables of the table of each row, int64 [k], as `of_band` has them."""
        sizes = [cell.stop - cell.start for cell in self.cells(band)]
        firsts = placement.cells[band :: self.bands][: self.shards]
        return self.of_band(self.places, band) - np.repeat(firsts, sizes)

    def shared_with(self, other: UniqueRows) -> NDArray[np.bool_]:
        """Return which of these rows are in `other` as well, bool [u]."""
        if not len(other):
            return np.zeros(len(self), np.bool_)
        nearest = np.searchsorted(other.places, self.places)
        shared: NDArray[np.bool_] = other.places[np.minimum(nearest, len(other) - 1)] == self.places
        return shared

    def select(self, mask: NDArray[np.bool_]) -> UniqueRows:
        """Return the rows where `mask` (bool [u]) is set."""
        selected = np.concatenate(([0], np.cumsum(mask)))
        return UniqueRows(
            self.places[mask], self.numbers[mask], tuple(selected[list(self.bounds)].tolist()), self.bands
        )
