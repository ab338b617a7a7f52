"""Route C: which rows a batch needs. Each row is fetched and pushed once, however many samples use it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cpr_trainer.placement import Placement

Ints = NDArray[np.int64]


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


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """The rows that one batch needs. inverse: int64 [n, T], the place in `unique` of each sample's row per table."""

    unique: UniqueRows
    inverse: Tensor

    def embeddings(self, vectors: Tensor) -> Tensor:
        """Return each sample's vectors, float32 [n, T, D], from those of the unique rows, float32 [u, D]."""
        return vectors.index_select(0, self.inverse.flatten()).view(*self.inverse.shape, vectors.shape[1])

    def sum_gradients(self, gradients: Tensor) -> Tensor:
        """Return the gradient of each unique row, float32 [u, D], summed over samples from float32 [n, T, D]."""
        dim = gradients.shape[-1]
        return gradients.new_zeros(len(self.unique), dim).index_add_(
            0, self.inverse.flatten(), gradients.reshape(-1, dim)
        )


def find_access(placement: Placement, ids: Ints) -> Access:
    """Return the access of a batch. ids: int64 [n, T], 0 <= ids[:, t] < rows of table t; n may be 0."""
    numbers = placement.numbers(ids).ravel()
    places, order = _sort(placement.places(numbers), placement.total)
    first = np.ones(len(places), np.bool_)
    np.not_equal(places[1:], places[:-1], out=first[1:])
    inverse = np.empty(len(places), np.int64)
    inverse[order] = np.cumsum(first) - 1
    unique = places[first]
    bounds = np.searchsorted(unique, placement.starts)
    rows = UniqueRows(unique, numbers[order[first]], tuple(bounds.tolist()))
    return Access(rows, torch.from_numpy(inverse).view(ids.shape))


def _sort(places: Ints, total: int) -> tuple[Ints, Ints]:
    """Return the places in ascending order and where each came from.

    The origin rides in the low bits of the sorted word: a plain sort is several times faster than `argsort`.
    """
    bits = max(len(places) - 1, 0).bit_length()
    if total << bits > 1 << 63:
        raise ValueError(f"a batch of {len(places)} ids is too large for tables of {total} rows")
    packed = (places << bits) | np.arange(len(places))
    packed.sort()
    return packed >> bits, packed & ((1 << bits) - 1)
