"""The rows of one band, the tables of one dim, that a batch needs: each once, however many samples use it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding_bag

from cpr_trainer.arrays import Ints
from cpr_trainer.bags import Bags
from cpr_trainer.features import Features
from cpr_trainer.placement import Placement
from cpr_trainer.rows import UniqueRows

# Vectors, and their gradients: of unique rows as shards serve them, and of samples as networks take them.


#: Vectors of unique rows, or their gradients: [u, D]. Where tables have several dims, of each band [u_b, D_b].
Rows = Tensor | tuple[Tensor, ...]


#: A vector for each bag, as a network takes them: [n, T, D]. Where tables have several dims, of each table [n, D_t].
#: Of a model that states features, these.
Embeddings = Tensor | tuple[Tensor, ...] | Features


def of_bands(matrices: tuple[Tensor, ...]) -> Rows:
    """Return the rows of each band as `Rows`: a lone one as it is."""
    return matrices[0] if len(matrices) == 1 else matrices


def the_only(values: Embeddings) -> Tensor:
    """Return what has to be one tensor. Raises TypeError if there is one for each band, table or feature."""
    if not isinstance(values, Tensor):
        raise TypeError(f"{len(values)} tensors in the place of one")
    return values


def each(change: Callable[[Tensor], Tensor], values: Rows) -> Rows:
    """Return a tensor, or each of some, changed."""
    return tuple(map(change, values)) if isinstance(values, tuple) else change(values)


_INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """The rows that one batch of n samples needs, each once, and which samples use them.

    Bag b = sample * T + table; without `pooling` each bag is one id. inverse: int32 [k], the place in `unique` of each
    id's row, bag after bag. order: int32 [k], the bags that use a row, row after row; those of row i are
    order[starts[i] : starts[i + 1]]. starts: int32 [u + 1].
    """

    unique: UniqueRows
    inverse: Tensor
    order: Tensor
    starts: Tensor
    tables: int
    pooling: Pooling | None = None

    def to(self, device: torch.device) -> Access:
        """Return the same access with its tensors on `device`; `unique` stays where shards are asked from."""
        return replace(
            self,
            inverse=self.inverse.to(device),
            order=self.order.to(device),
            starts=self.starts.to(device),
            pooling=None if self.pooling is None else self.pooling.to(device),
        )

    def embeddings(self, vectors: Rows) -> Tensor:
        """Return the vector of each bag, [n, T, D], from those of the unique rows, [u, D]; zeros for empty bags."""
        pooled = self.of_bags(the_only(vectors))
        return pooled.view(len(pooled) // self.tables, self.tables, pooled.shape[1])

    def of_bags(self, vectors: Tensor) -> Tensor:
        """Return the vector of each bag, [b, D], from those of the unique rows, [u, D]."""
        if self.pooling is None:
            return vectors.index_select(0, self.inverse)
        return self.pooling.scale(_sums(self.inverse, vectors, self.pooling.offsets, self.pooling.of_ids))

    @torch.no_grad()
    def sum_gradients(self, gradients: Embeddings) -> Tensor:
        """Return the gradient of each unique row, [u, D], summed over the bags that use it from [n, T, D].

        Sums row after row with vector instructions and on all threads: a quarter of the time of `index_add_`.
        """
        gradients = the_only(gradients)
        return self.sum_of_bags(gradients.reshape(-1, gradients.shape[-1]))

    def sum_of_bags(self, gradients: Tensor) -> Tensor:
        """Return the gradient of each unique row, [u, D], summed over the bags that use it from [b, D]."""
        if self.pooling is None:
            return _sums(self.order, gradients, self.starts)
        return _sums(self.order, self.pooling.scale(gradients), self.starts, self.pooling.of_uses)


@dataclass(frozen=True, slots=True, eq=False)
class Pooling:
    """How the vectors of b bags become one each. offsets: int32 [b + 1], where each bag begins in `Access.inverse`.

    weights: float32 [b, 1]: 1, or where a table takes the mean 1 / the bag's length; None if no table does. of_ids:
    float32 [k], the weight of each id, in the order of `Access.inverse`; of_uses in that of `Access.order`. None: 1.
    """

    offsets: Tensor
    weights: Tensor | None
    of_ids: Tensor | None = None
    of_uses: Tensor | None = None

    @classmethod
    def of(cls, bags: Bags, alone: int = 0) -> Self:
        """Return how the features of these bags pool; behind them are so many ids `alone`, each a bag by itself."""
        weights = None
        if bags.means.any():
            shares = np.where(bags.means, 1 / np.maximum(bags.lengths, 1), 1).astype(np.float32).ravel()
            weights = torch.from_numpy(np.append(shares, np.ones(alone, np.float32))).view(-1, 1)
        last = bags.offsets[-1]
        if last + np.int64(alone) > _INT32_MAX:
            raise ValueError(f"a batch of {last + np.int64(alone)} ids is too large")
        offsets = np.append(bags.offsets, last + np.arange(1, alone + 1, dtype=np.int32)) if alone else bags.offsets
        return cls(torch.from_numpy(offsets), weights)

    def to(self, device: torch.device) -> Pooling:
        """Return the same pooling with its tensors on `device`."""
        moved = (None if values is None else values.to(device) for values in (self.weights, self.of_ids, self.of_uses))
        return Pooling(self.offsets.to(device), *moved)

    def scale(self, values: Tensor) -> Tensor:
        """Return sums, or gradients, of all bags times their weights, [n T, D] in the same type."""
        return values if self.weights is None else values * self.weights.to(values.dtype)


def access_of_band(placement: Placement, ids: Ints | Bags, offsets: Ints) -> Access:
    """Return the access of tables of one dim; offsets: int64 [t], the number of the first row of each."""
    tables = len(offsets)
    if isinstance(ids, Bags):
        # The bag of each id: the only array beside the ids that has to be made for them.
        bags = np.repeat(np.arange(len(ids.offsets) - 1, dtype=np.int32), np.diff(ids.offsets))
        access = find(placement, ids.ids + offsets[bags % tables], tables)
        return replace(access, order=torch.from_numpy(bags[access.order.numpy()]), pooling=Pooling.of(ids))
    if ids.size > _INT32_MAX:
        raise ValueError(f"a batch of {ids.size} ids is too large")
    return find(placement, (ids + offsets).ravel(), tables)


def find(placement: Placement, numbers: Ints, tables: int) -> Access:
    """Return the access of row numbers, int64 [k], as if each was a bag."""
    places, order = _sort(placement.places(numbers), placement.total)
    first = np.ones(len(places), np.bool_)
    np.not_equal(places[1:], places[:-1], out=first[1:])
    starts = np.flatnonzero(first)
    inverse = np.empty(len(places), np.int32)
    inverse[order] = np.cumsum(first, dtype=np.int32) - np.int32(1)
    unique = places[starts].astype(np.int64)
    rows = unique_rows(placement, unique, numbers[order[starts]])
    ends = np.append(starts, len(places)).astype(np.int32)
    return Access(
        rows,
        torch.from_numpy(inverse),
        torch.from_numpy(order.astype(np.int32)),
        torch.from_numpy(ends),
        tables,
    )


def unique_rows(placement: Placement, places: Ints, numbers: Ints) -> UniqueRows:
    """Return rows by their places, int64 [u] ascending, and numbers, int64 [u]."""
    return UniqueRows(places, numbers, tuple(np.searchsorted(places, placement.cells).tolist()), placement.bands)


def _sort(places: Ints, total: int) -> tuple[NDArray[np.integer[Any]], Ints]:
    """Return the places in ascending order and where each came from.

    torch sorts integers by their digits, several times faster than numpy's comparisons; half as many take half the
    time.
    """
    digits = torch.from_numpy(places if total > _INT32_MAX else places.astype(np.int32))
    ascending, order = torch.sort(digits, stable=True)
    return ascending.numpy(), order.numpy()


def _sums(places: Tensor, values: Tensor, starts: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the sums of runs of values [m, D]: of those at places[starts[i] : starts[i + 1]], times their weights."""
    weights = None if weights is None else weights.to(values.dtype)
    return embedding_bag(places, values, starts, mode="sum", include_last_offset=True, per_sample_weights=weights)
