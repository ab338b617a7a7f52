"""Route C: which rows a batch needs. Each row is fetched and pushed once, however many samples use it."""

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
from cpr_trainer.placement import Placement
from cpr_trainer.rows import UniqueRows

_INT32_MAX = 2**31 - 1

#: Vectors of unique rows, or their gradients: [u, D]. Where tables have several dims, of each band [u_b, D_b].
Rows = Tensor | tuple[Tensor, ...]
#: A vector for each bag, as a network takes them: [n, T, D]. Where tables have several dims, of each table [n, D_t].
Embeddings = Tensor | tuple[Tensor, ...]


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
        vectors = the_only(vectors)
        if self.pooling is None:
            pooled = vectors.index_select(0, self.inverse)
        else:
            sums = embedding_bag(self.inverse, vectors, self.pooling.offsets, mode="sum", include_last_offset=True)
            pooled = self.pooling.scale(sums)
        return pooled.view(len(pooled) // self.tables, self.tables, vectors.shape[1])

    @torch.no_grad()
    def sum_gradients(self, gradients: Embeddings) -> Tensor:
        """Return the gradient of each unique row, [u, D], summed over the bags that use it from [n, T, D].

        Sums row after row with vector instructions and on all threads: a quarter of the time of `index_add_`.
        """
        gradients = the_only(gradients)
        flat = gradients.reshape(-1, gradients.shape[-1])
        if self.pooling is not None:
            flat = self.pooling.scale(flat)
        return embedding_bag(self.order, flat, self.starts, mode="sum", include_last_offset=True)


@dataclass(frozen=True, slots=True, eq=False)
class BandedAccess:
    """The rows that one batch needs, where tables have several dims. unique: all of them.

    bands: the access of each band by itself. tables: which tables those are, in the order of their bags.
    """

    unique: UniqueRows
    bands: tuple[Access, ...]
    tables: tuple[Ints, ...]

    def to(self, device: torch.device) -> BandedAccess:
        """See `Access.to`."""
        return replace(self, bands=tuple(access.to(device) for access in self.bands))

    def embeddings(self, vectors: Rows) -> tuple[Tensor, ...]:
        """Return the vectors of the bags of each table, [n, D_t], from those of the unique rows, [u_b, D_b]."""
        found = dict[int, Tensor]()
        for access, tables, mine in zip(self.bands, self.tables, vectors, strict=True):
            for table, values in zip(tables.tolist(), access.embeddings(mine).unbind(dim=1), strict=True):
                found[table] = values.contiguous()
        return tuple(found[table] for table in range(len(found)))

    @torch.no_grad()
    def sum_gradients(self, gradients: Embeddings) -> tuple[Tensor, ...]:
        """Return the gradients of the unique rows, of each band [u_b, D_b], from those of each table, [n, D_t]."""
        return tuple(
            access.sum_gradients(torch.stack([gradients[table] for table in tables.tolist()], dim=1))
            for access, tables in zip(self.bands, self.tables, strict=True)
        )


def of_bands(matrices: tuple[Tensor, ...]) -> Rows:
    """Return the rows of each band as `Rows`: a lone one as it is."""
    return matrices[0] if len(matrices) == 1 else matrices


def the_only(values: Tensor | tuple[Tensor, ...]) -> Tensor:
    """Return what has to be one tensor. Raises TypeError if there is one for each band, or table."""
    if isinstance(values, tuple):
        raise TypeError(f"{len(values)} tensors in the place of one")
    return values


def each(change: Callable[[Tensor], Tensor], values: Tensor | tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
    """Return a tensor, or each of some, changed."""
    return tuple(map(change, values)) if isinstance(values, tuple) else change(values)


@dataclass(frozen=True, slots=True, eq=False)
class Pooling:
    """How the vectors of bags become one each. offsets: int32 [n T + 1], where each bag begins in `Access.inverse`.

    weights: float32 [n T, 1]: 1, or where a table takes the mean 1 / the bag's length; None if no table does.
    """

    offsets: Tensor
    weights: Tensor | None

    @classmethod
    def of(cls, bags: Bags) -> Self:
        """Return how the tables of these bags pool."""
        weights = None
        if bags.means.any():
            weights = torch.from_numpy(np.where(bags.means, 1 / np.maximum(bags.lengths, 1), 1).astype(np.float32))
        return cls(torch.from_numpy(bags.offsets), None if weights is None else weights.view(-1, 1))

    def to(self, device: torch.device) -> Pooling:
        """Return the same pooling with its tensors on `device`."""
        return Pooling(self.offsets.to(device), None if self.weights is None else self.weights.to(device))

    def scale(self, values: Tensor) -> Tensor:
        """Return sums, or gradients, of all bags times their weights, [n T, D] in the same type."""
        return values if self.weights is None else values * self.weights.to(values.dtype)


def find_access(placement: Placement, ids: Ints | Bags) -> Access | BandedAccess:
    """Return the access of a batch. ids: int64 [n, T], 0 <= ids[:, t] < rows of table t, or bags; n may be 0.

    Raises ValueError if there are more than 2**31 - 1 ids.
    """
    if placement.bands == 1:
        return _of_band(placement, ids, placement.offsets)
    tables = tuple(np.flatnonzero(placement.band_of == band) for band in range(placement.bands))
    columns = (ids.of_tables(mine) if isinstance(ids, Bags) else ids[:, mine] for mine in tables)
    bands = tuple(_of_band(placement, its, placement.offsets[mine]) for its, mine in zip(columns, tables, strict=True))
    places = np.concatenate([access.unique.places for access in bands])
    numbers = np.concatenate([access.unique.numbers for access in bands])
    order = np.argsort(places, kind="stable")  # runs of each shard and band
    return BandedAccess(_unique(placement, places[order], numbers[order]), bands, tables)


def _of_band(placement: Placement, ids: Ints | Bags, offsets: Ints) -> Access:
    """Return the access of tables of one dim; offsets: int64 [t], the number of the first row of each."""
    tables = len(offsets)
    if isinstance(ids, Bags):
        # The bag of each id: the only array beside the ids that has to be made for them.
        bags = np.repeat(np.arange(len(ids.offsets) - 1, dtype=np.int32), np.diff(ids.offsets))
        access = _find(placement, ids.ids + offsets[bags % tables], tables)
        return replace(access, order=torch.from_numpy(bags[access.order.numpy()]), pooling=Pooling.of(ids))
    if ids.size > _INT32_MAX:
        raise ValueError(f"a batch of {ids.size} ids is too large")
    return _find(placement, (ids + offsets).ravel(), tables)


def _find(placement: Placement, numbers: Ints, tables: int) -> Access:
    """Return the access of row numbers, int64 [k], as if each was a bag."""
    places, order = _sort(placement.places(numbers), placement.total)
    first = np.ones(len(places), np.bool_)
    np.not_equal(places[1:], places[:-1], out=first[1:])
    starts = np.flatnonzero(first)
    inverse = np.empty(len(places), np.int32)
    inverse[order] = np.cumsum(first, dtype=np.int32) - np.int32(1)
    unique = places[starts].astype(np.int64)
    rows = _unique(placement, unique, numbers[order[starts]])
    ends = np.append(starts, len(places)).astype(np.int32)
    return Access(
        rows,
        torch.from_numpy(inverse),
        torch.from_numpy(order.astype(np.int32)),
        torch.from_numpy(ends),
        tables,
    )


def _unique(placement: Placement, places: Ints, numbers: Ints) -> UniqueRows:
    return UniqueRows(places, numbers, tuple(np.searchsorted(places, placement.cells).tolist()), placement.bands)


def _sort(places: Ints, total: int) -> tuple[NDArray[np.integer[Any]], Ints]:
    """Return the places in ascending order and where each came from.

    torch sorts integers by their digits, several times faster than numpy's comparisons; half as many take half the
    time.
    """
    digits = torch.from_numpy(places if total > _INT32_MAX else places.astype(np.int32))
    ascending, order = torch.sort(digits, stable=True)
    return ascending.numpy(), order.numpy()
