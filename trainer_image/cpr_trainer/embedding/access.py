"""The rows that a batch needs: each is fetched and pushed once, although many samples may use it.

Vectors come from shards by unique rows, and networks take them by samples. An access converts between the two: forward
the vectors, backward the gradients. With several bands (see `placement`) there is one access for each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from cpr_trainer.arrays import Ints
from cpr_trainer.embedding.bags import Bags, FeatureLayout
from cpr_trainer.embedding.dynamic.pages import digits_of, first_of_runs, settle
from cpr_trainer.embedding.feature_vectors import Embeddings, Features, Jagged
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.embedding.unique_rows import UniqueRows

#: Vectors of unique rows, or their gradients: [u, D]; of several bands one for each, [u_b, D_b].
Rows = Tensor | tuple[Tensor, ...]

_INT32_MAX = 2**31 - 1
#: Among more keys, 31 bits of table and key are often those of two keys.
_FEW_KEYS = 1 << 17


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

    def embeddings(self, vectors: Rows, spare: int = 0) -> Tensor:
        """Return the vector of each bag, [n, spare + T, D], from those of the unique rows, [u, D].

        Empty bags, and the spare places before the vectors of each sample, have zeros.
        """
        vectors, pooling = single_tensor(vectors), self.pooling
        if not spare:
            return self.of_bags(vectors).view(-1, self.tables, vectors.shape[1])
        ends = torch.arange(len(self.inverse) + 1, dtype=torch.int32) if pooling is None else pooling.offsets
        begins = ends[:-1].view(-1, self.tables)
        begins = torch.cat((begins[:, :1].expand(-1, spare), begins), dim=1)  # a spare place is an empty bag
        offsets = torch.cat((begins.flatten(), ends[-1:]))
        found = _sums(self.inverse, vectors, offsets, None if pooling is None else pooling.of_ids)
        found = found.view(-1, spare + self.tables, vectors.shape[1])
        if pooling is not None and pooling.weights is not None:
            found[:, spare:] *= pooling.weights.view(-1, self.tables, 1).to(found.dtype)
        return found

    def of_bags(self, vectors: Tensor) -> Tensor:
        """Return the vector of each bag, [b, D], from those of the unique rows, [u, D]."""
        if self.pooling is None:
            return vectors.index_select(0, self.inverse)
        return self.pooling.scale(_sums(self.inverse, vectors, self.pooling.offsets, self.pooling.of_ids))

    @torch.no_grad()
    def sum_gradients(self, gradients: Embeddings) -> Tensor:
        """Return the gradient of each unique row, [u, D], summed over the bags that use it from [n, spare + T, D].

        Sums row after row with vector instructions and on all threads: a quarter of the time of `index_add_`.
        """
        gradients, pooling = single_tensor(gradients), self.pooling
        spare, flat = gradients.shape[1] - self.tables, gradients.reshape(-1, gradients.shape[2])
        if not spare:
            return self.sum_of_bags(flat)
        if pooling is not None and pooling.weights is not None:
            return self.sum_of_bags(gradients[:, spare:].reshape(-1, gradients.shape[2]))
        order = self.order + spare * (1 + self.order.div(self.tables, rounding_mode="floor"))
        return _sums(order, flat, self.starts, None if pooling is None else pooling.of_uses)

    def sum_of_bags(self, gradients: Tensor) -> Tensor:
        """Return the gradient of each unique row, [u, D], summed over the bags that use it from [b, D]."""
        if self.pooling is None:
            return _sums(self.order, gradients, self.starts)
        return _sums(self.order, self.pooling.scale(gradients), self.starts, self.pooling.of_uses)


@dataclass(frozen=True, slots=True, eq=False)
class Pooling:
    """Pools the vectors of b bags into one each. offsets: int32 [b + 1], where each bag begins in `Access.inverse`.

    weights: float32 [b, 1]: 1, or where a table takes the mean 1 / the bag's length; None if no table does. of_ids:
    float32 [k], the weight of each id, in the order of `Access.inverse`; of_uses in that of `Access.order`. None: 1.
    """

    offsets: Tensor
    weights: Tensor | None
    of_ids: Tensor | None = None
    of_uses: Tensor | None = None

    @classmethod
    def of(cls, bags: Bags, alone: int = 0) -> Self:
        """Return the pooling of these bags, followed by `alone` ids that are a bag each."""
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


@dataclass(frozen=True, slots=True, eq=False)
class BandedAccess:
    """The rows that one batch needs, where tables have several dims or precisions. unique: all of them.

    bands: the access of each band by itself. tables: which tables those are, in the order of their bags.
    """

    unique: UniqueRows
    bands: tuple[Access, ...]
    tables: tuple[Ints, ...]

    def to(self, device: torch.device) -> BandedAccess:
        return replace(self, bands=tuple(access.to(device) for access in self.bands))

    def embeddings(self, vectors: Rows) -> Tensor | tuple[Tensor, ...]:
        """Return the vectors of the bags from those of the unique rows, [u_b, D_b].

        Those of each table, [n, D_t]; if all bands have one dim, in one tensor [n, T, D].
        """
        of_bands = [access.embeddings(mine) for access, mine in zip(self.bands, vectors, strict=True)]
        first = of_bands[0]
        if all(each.shape[2] == first.shape[2] for each in of_bands):
            whole = first.new_empty(len(first), sum(map(len, self.tables)), first.shape[2])
            for tables, values in zip(self.tables, of_bands, strict=True):
                whole[:, torch.from_numpy(tables)] = values
            return whole
        found = dict[int, Tensor]()
        for tables, values in zip(self.tables, of_bands, strict=True):
            found.update(zip(tables.tolist(), (each.contiguous() for each in values.unbind(dim=1)), strict=True))
        return tuple(found[table] for table in range(len(found)))

    @torch.no_grad()
    def sum_gradients(self, gradients: Embeddings) -> tuple[Tensor, ...]:
        """Return the gradients of the unique rows, of each band [u_b, D_b], from those of `embeddings`."""
        if isinstance(gradients, Features):
            raise TypeError("gradients of features in the place of those of tables")
        if isinstance(gradients, Tensor):
            blocks = [gradients[:, torch.from_numpy(tables)] for tables in self.tables]
        else:
            blocks = [torch.stack([gradients[table] for table in tables.tolist()], dim=1) for tables in self.tables]
        return tuple(access.sum_gradients(block) for access, block in zip(self.bands, blocks, strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class FeatureAccess:
    """The rows that one batch needs of a model that states features. unique: all of them.

    bands: the access of each band by itself. Its bags are those of the features that are one vector, sample by sample,
    and then each id of a sequence by itself, feature after feature. lengths: of each band's sequences, int64 [n].
    weights: float32 [k], of their ids, or None.
    """

    unique: UniqueRows
    layout: FeatureLayout
    samples: int
    bands: tuple[Access, ...]
    lengths: tuple[tuple[Tensor, ...], ...]
    weights: tuple[tuple[Tensor | None, ...], ...]

    def to(self, device: torch.device) -> FeatureAccess:
        return replace(
            self,
            bands=tuple(access.to(device) for access in self.bands),
            lengths=tuple(tuple(each.to(device) for each in its) for its in self.lengths),
            weights=tuple(tuple(None if each is None else each.to(device) for each in its) for its in self.weights),
        )

    def embeddings(self, vectors: Rows) -> Features:
        """Return the features from the vectors of the unique rows, [u, D], or of each band [u_b, D_b]."""
        pooled, sequences = [], []
        bands = vectors if isinstance(vectors, tuple) else (vectors,)
        for band, (access, mine) in enumerate(zip(self.bands, bands, strict=True)):
            flat, lengths = access.of_bags(mine), self.lengths[band]
            parts = torch.split(flat, [self.samples * access.tables, *(int(each.sum()) for each in lengths)])
            pooled.append(parts[0].view(self.samples, access.tables, mine.shape[1]))
            sequences.append([*map(Jagged, parts[1:], lengths, self.weights[band])])
        return Features(self.layout, pooled, sequences)

    @torch.no_grad()
    def sum_gradients(self, gradients: Embeddings) -> Rows:
        """Return the gradients of the unique rows, [u, D], or of each band [u_b, D_b], from those of the features."""
        if not isinstance(gradients, Features):
            raise TypeError("the gradients are not those of features")
        found = []
        for access, block, sequences in zip(self.bands, gradients.pooled, gradients.sequences, strict=True):
            flat = [block.reshape(-1, block.shape[2]), *(each.values for each in sequences)]
            found.append(access.sum_of_bags(torch.cat(flat) if sequences else flat[0]))
        return as_rows(tuple(found))


#: The rows that a batch needs: of tables of one dim, of several, or of features.
AnyAccess = Access | BandedAccess | FeatureAccess


def find_access(placement: Placement, ids: Ints | Bags) -> AnyAccess:
    """Return the access of a batch. ids: int64 [n, T], 0 <= ids[:, t] < rows of table t, or bags; n may be 0.

    The ids of a dynamic table are the bits of its keys.

    Raises ValueError if there are more than 2**31 - 1 ids.
    """
    if isinstance(ids, Bags) and (layout := ids.features) is not None:
        found, lengths, weights = list[Access](), [], []
        bands = zip(layout.pooled, layout.sequences, strict=True)
        for band, (pooled, sequences) in enumerate(bands):  # a row is found once in a band
            alone = [ids.of(np.array([place], np.int64)) for place in sequences]
            pooled_tables, their_tables = layout.tables[pooled], layout.tables[[*sequences]]
            found.append(_access_of_feature_band(placement, band, ids.of(pooled), alone, pooled_tables, their_tables))
            lengths.append(tuple(torch.from_numpy(each.lengths[:, 0]) for each in alone))
            weights.append(tuple(None if each.weights is None else torch.from_numpy(each.weights) for each in alone))
        unique = _rows_of_bands(placement, tuple(found))
        return FeatureAccess(unique, layout, len(ids), tuple(found), tuple(lengths), tuple(weights))
    tables = tuple(np.flatnonzero(placement.band_of == band) for band in range(placement.table_bands))
    if len(tables) == 1:
        return _access_of_band(placement, 0, ids, tables[0])
    columns = (ids.of(mine) if isinstance(ids, Bags) else ids[:, mine] for mine in tables)
    each_band = enumerate(zip(columns, tables, strict=True))
    bands_access = tuple(_access_of_band(placement, band, of_band, mine) for band, (of_band, mine) in each_band)
    return BandedAccess(_rows_of_bands(placement, bands_access), bands_access, tables)


def as_rows(matrices: tuple[Tensor, ...]) -> Rows:
    """Return the rows of each band as `Rows`; a single band has no tuple."""
    return matrices[0] if len(matrices) == 1 else matrices


def single_tensor(values: Embeddings) -> Tensor:
    """Return `values` as one tensor. Raises TypeError if there is one for each band, table or feature."""
    if not isinstance(values, Tensor):
        raise TypeError(f"{len(values)} tensors in the place of one")
    return values


def map_rows(change: Callable[[Tensor], Tensor], values: Rows) -> Rows:
    """Return a tensor, or each of some, changed."""
    return tuple(map(change, values)) if isinstance(values, tuple) else change(values)


def _access_of_band(placement: Placement, band: int, ids: Ints | Bags, tables: Ints) -> Access:
    """Return the access of the tables of a band, int64 [t]."""
    if isinstance(ids, Bags):
        return _access_of_feature_band(placement, band, ids, [], tables, tables[:0])
    if ids.size > _INT32_MAX:
        raise ValueError(f"a batch of {ids.size} ids is too large")
    if placement.is_dynamic(band):
        return _find_keys(
            placement, band, ids.ravel(), np.tile(placement.places_in_band(band, tables), len(ids)), len(tables)
        )
    return _find(placement, (ids + placement.offsets[tables]).ravel(), len(tables))


def _access_of_feature_band(  # noqa: PLR0913, PLR0917 -- two kinds of features, each with its tables
    placement: Placement,
    band: int,
    pooled: Bags,
    sequences: list[Bags],
    pooled_tables: Ints,
    sequence_tables: Ints,
) -> Access:
    """Return the access of a band: the bags of `pooled`, then each id of `sequences`, one feature each, by itself."""
    features = len(pooled_tables)
    bags = np.repeat(np.arange(len(pooled.offsets) - 1, dtype=np.int32), np.diff(pooled.offsets))
    ids = np.concatenate([pooled.ids, *(each.ids for each in sequences)]) if sequences else pooled.ids
    is_dynamic = placement.is_dynamic(band)
    pooled_terms, their_terms = (
        placement.places_in_band(band, tables) if is_dynamic else placement.offsets[tables]
        for tables in (pooled_tables, sequence_tables)
    )
    terms = pooled_terms[bags % max(features, 1)]
    if sequences:
        terms = np.concatenate([terms, np.repeat(their_terms, [len(each.ids) for each in sequences])])
    count = len(pooled.offsets) - 1
    alone = len(ids) - len(pooled.ids)
    if alone:
        bags = np.concatenate((bags, np.arange(count, count + alone, dtype=np.int32)))
    if is_dynamic:
        access = _find_keys(placement, band, ids.astype(np.int64, copy=False), terms, features)
    else:
        access = _find(placement, ids + terms, features)
    uses = access.order.numpy()
    pooling = Pooling.of(pooled, alone)
    if pooled.weights is not None and (pooled.weights != 1).any():
        weights = np.append(pooled.weights, np.ones(alone, np.float32))  # a network weighs the `alone` ones itself
        pooling = replace(pooling, of_ids=torch.from_numpy(weights), of_uses=torch.from_numpy(weights[uses]))
    return replace(access, order=torch.from_numpy(bags[uses]), pooling=pooling)


def _rows_of_bands(placement: Placement, bands: tuple[Access, ...]) -> UniqueRows:
    """Return the unique rows of all bands."""
    if len(bands) == 1:
        return bands[0].unique
    places = np.concatenate([access.unique.places for access in bands])
    numbers = np.concatenate([access.unique.numbers for access in bands])
    order = np.argsort(places, kind="stable")  # runs of each shard and band
    return UniqueRows.of(placement, places[order], numbers[order])


def _find(placement: Placement, numbers: Ints, features: int) -> Access:
    """Return the access of the rows with these numbers, int64 [k], of one band, as if each was a bag."""
    found = placement.places(numbers)
    # torch sorts integers by their digits, several times faster than numpy's comparisons; half as many digits take half
    # the time.
    digits = torch.from_numpy(found if placement.total > _INT32_MAX else found.astype(np.int32))
    ranks, order = (each.numpy() for each in torch.sort(digits, stable=True))
    starts = np.flatnonzero(first_of_runs(ranks))
    rows = UniqueRows.of(placement, ranks[starts].astype(np.int64), numbers[order[starts]])
    return _grouped(rows, order, np.append(starts, len(order)), features)


def _find_keys(placement: Placement, band: int, keys: Ints, tables: Ints, features: int) -> Access:
    """Return the access of keys of dynamic tables, int64 [k], as if each was a bag.

    tables: int64 [k], the place in the band of the table of each.
    """
    names = keys.view(np.uint64)
    digits = digits_of(names, tables, 31).astype(np.int32) if len(keys) <= _FEW_KEYS else digits_of(names, tables, 63)
    ascending, order = (each.numpy() for each in torch.sort(torch.from_numpy(digits), stable=True))
    order, starts = settle(order, ascending, names)
    keys, tables = keys[order[starts]], tables[order[starts]]
    shards = placement.shards_of_keys(band, keys.view(np.uint64), tables)
    # A stable sort of 16 bits is by digits. There are fewer shards.
    by_shard = np.argsort(shards.astype(np.uint16), kind="stable")
    sizes = np.diff(np.append(starts, len(order)))[by_shard]
    ends = np.cumsum(sizes)
    order = order[np.repeat(starts[by_shard] - ends + sizes, sizes) + np.arange(len(order))]
    places = placement.cells[shards * placement.bands + band] + tables
    rows = UniqueRows.of(placement, places[by_shard], keys[by_shard])
    return _grouped(rows, order, np.append(0, ends), features)


def _grouped(rows: UniqueRows, order: Ints, starts: Ints, features: int) -> Access:
    """Return the access of ids that are grouped by row. starts: int64 [u + 1], as those of `Access`."""
    inverse = np.empty(len(order), np.int32)
    inverse[order] = np.repeat(np.arange(len(rows), dtype=np.int32), np.diff(starts))
    uses, ends = (torch.from_numpy(each.astype(np.int32)) for each in (order, starts))
    return Access(rows, torch.from_numpy(inverse), uses, ends, features)


def _sums(places: Tensor, values: Tensor, starts: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the sums of runs of values [m, D]: of those at places[starts[i] : starts[i + 1]], times their weights."""
    weights = None if weights is None else weights.to(values.dtype)
    return embedding_bag(places, values, starts, mode="sum", include_last_offset=True, per_sample_weights=weights)
