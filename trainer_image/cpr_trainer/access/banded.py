"""The rows that a batch needs of tables of several dims."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from cpr_trainer.access.band import Access, access_of_band, unique_rows
from cpr_trainer.access.rows import Embeddings, Rows
from cpr_trainer.arrays import Ints
from cpr_trainer.bags import Bags
from cpr_trainer.features import Features
from cpr_trainer.placement import Placement
from cpr_trainer.rows import UniqueRows


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
