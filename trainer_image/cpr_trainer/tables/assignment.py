"""Which optimizer steps which rows: each table may have its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Self

import numpy as np

from cpr_contract.spec import ModelSpec, SparseOptimizerSpec
from cpr_trainer.arrays import Ints
from cpr_trainer.tables.optimizers import state_width


class Assignment:
    """The optimizer of each row, by the row's number (see `Placement`): there, but not in slots, a table is a range.

    distinct: the optimizers of the tables, each once. of_table: int64 [T], the place in `distinct` of each table's.
    """

    def __init__(self, rows_per_table: Sequence[int], optimizers: Sequence[SparseOptimizerSpec]) -> None:
        self.distinct = tuple(dict.fromkeys(optimizers))
        self._ends: Ints = np.cumsum(rows_per_table, dtype=np.int64)
        self.of_table: Ints = np.array([self.distinct.index(optimizer) for optimizer in optimizers])

    @classmethod
    def of(cls, model: ModelSpec) -> Self:
        """Return that of a model's tables."""
        return cls([table.rows for table in model.tables], model.table_optimizers)

    def parts(self, numbers: Ints) -> Iterator[tuple[SparseOptimizerSpec, Ints | None]]:
        """Yield each optimizer that has any of these rows, int64 [k], with where in `numbers` they stand; None: all."""
        if len(self.distinct) == 1:
            yield self.distinct[0], None
            return
        which = self.of_table[np.searchsorted(self._ends, numbers, side="right")]
        for place, optimizer in enumerate(self.distinct):
            found = np.flatnonzero(which == place)
            if len(found):
                yield optimizer, found


def state_widths(model: ModelSpec) -> tuple[int, ...]:
    """Return for each band how many float32 are kept beside each of its rows: as many as any of its tables needs."""
    widths = [0] * len(model.dims)
    for band, dim, optimizer in zip(model.bands, model.table_dims, model.table_optimizers, strict=True):
        widths[band] = max(widths[band], state_width(optimizer.kind, dim))
    return tuple(widths)
