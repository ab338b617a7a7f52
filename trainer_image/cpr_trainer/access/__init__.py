"""Which rows a batch needs. Each row is fetched and pushed once, however many samples use it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cpr_trainer.access.band import (
    Access,
    Embeddings,
    Pooling,
    Rows,
    access_of_band,
    each,
    find,
    of_bands,
    the_only,
    unique_rows,
)
from cpr_trainer.arrays import Ints
from cpr_trainer.bags import Bags, FeatureLayout
from cpr_trainer.features import Features, Jagged
from cpr_trainer.placement import Placement
from cpr_trainer.rows import UniqueRows

__all__ = [
    "Access",
    "AnyAccess",
    "BandedAccess",
    "Embeddings",
    "FeatureAccess",
    "Rows",
    "each",
    "find_access",
    "of_bands",
    "the_only",
]

# The rows that a batch needs of tables of several dims.


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
        if isinstance(gradients, Features):
            raise TypeError("gradients of features in the place of those of tables")
        return tuple(
            access.sum_gradients(torch.stack([gradients[table] for table in tables.tolist()], dim=1))
            for access, tables in zip(self.bands, self.tables, strict=True)
        )


def access_of_bands(placement: Placement, ids: Ints | Bags) -> BandedAccess:
    """Return the access of tables of several dims. ids: see `find_access`."""
    tables = tuple(np.flatnonzero(placement.band_of == band) for band in range(placement.bands))
    columns = (ids.of(mine) if isinstance(ids, Bags) else ids[:, mine] for mine in tables)
    offsets = (placement.offsets[mine] for mine in tables)
    bands = tuple(access_of_band(placement, *each) for each in zip(columns, offsets, strict=True))
    return BandedAccess(rows_of_bands(placement, bands), bands, tables)


def rows_of_bands(placement: Placement, bands: tuple[Access, ...]) -> UniqueRows:
    """Return the unique rows of all bands."""
    if len(bands) == 1:
        return bands[0].unique
    places = np.concatenate([access.unique.places for access in bands])
    numbers = np.concatenate([access.unique.numbers for access in bands])
    order = np.argsort(places, kind="stable")  # runs of each shard and band
    return unique_rows(placement, places[order], numbers[order])


# The rows that a batch needs of a model that states features.


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
        """See `Access.to`."""
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
        return of_bands(tuple(found))


def access_of_features(placement: Placement, bags: Bags, layout: FeatureLayout) -> FeatureAccess:
    """Return the access of features: a row is found once, whichever features lead to it."""
    bands, lengths, weights = [], [], []
    offsets = placement.offsets[layout.tables]
    for pooled, sequences in zip(layout.pooled, layout.sequences, strict=True):
        alone = [bags.of(np.array([place], np.int64)) for place in sequences]
        bands.append(_of_one_band(placement, bags.of(pooled), alone, offsets[pooled], offsets[[*sequences]]))
        lengths.append(tuple(torch.from_numpy(each.lengths[:, 0]) for each in alone))
        weights.append(tuple(None if each.weights is None else torch.from_numpy(each.weights) for each in alone))
    found = tuple(bands)
    return FeatureAccess(rows_of_bands(placement, found), layout, len(bags), found, tuple(lengths), tuple(weights))


def _of_one_band(
    placement: Placement, pooled: Bags, sequences: list[Bags], pooled_offsets: Ints, sequence_offsets: Ints
) -> Access:
    """Return the access of a band: the bags of `pooled`, then each id of `sequences`, one feature each, by itself."""
    features = len(pooled_offsets)
    bags = np.repeat(np.arange(len(pooled.offsets) - 1, dtype=np.int32), np.diff(pooled.offsets))
    numbers = [pooled.ids + pooled_offsets[bags % max(features, 1)]]
    numbers += [each.ids + offset for each, offset in zip(sequences, sequence_offsets.tolist(), strict=True)]
    count = len(pooled.offsets) - 1
    alone = sum(len(each.ids) for each in sequences)
    if alone:
        bags = np.concatenate((bags, np.arange(count, count + alone, dtype=np.int32)))
    access = find(placement, np.concatenate(numbers), features)
    uses = access.order.numpy()
    weights = _weights(pooled, alone)
    pooling = Pooling.of(pooled, alone)
    if weights is not None:
        pooling = replace(pooling, of_ids=torch.from_numpy(weights), of_uses=torch.from_numpy(weights[uses]))
    return replace(access, order=torch.from_numpy(bags[uses]), pooling=pooling)


def _weights(pooled: Bags, alone: int) -> NDArray[np.float32] | None:
    """Return the weight of each id, and 1 for `alone` more, which a network weighs itself; None if all are 1."""
    if pooled.weights is None or (pooled.weights == 1).all():
        return None
    return np.concatenate((pooled.weights, np.ones(alone, np.float32)))


#: The rows that a batch needs: of tables of one dim, of several, or of features.
AnyAccess = Access | BandedAccess | FeatureAccess


def find_access(placement: Placement, ids: Ints | Bags) -> AnyAccess:
    """Return the access of a batch. ids: int64 [n, T], 0 <= ids[:, t] < rows of table t, or bags; n may be 0.

    Raises ValueError if there are more than 2**31 - 1 ids.
    """
    if isinstance(ids, Bags) and ids.features is not None:
        return access_of_features(placement, ids, ids.features)
    if placement.bands == 1:
        return access_of_band(placement, ids, placement.offsets)
    return access_of_bands(placement, ids)
