"""The sparse optimizers as arithmetic on arrays, and their assignment to rows.

Only rows with a gradient change, and only their state: nothing decays meanwhile. g is the gradient of a row, [D],
summed over the samples of one push; lr is the learning rate of the push's step. Products and roots of vectors are by
value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Self, assert_never

import numpy as np

from cpr_contract.choices import Precision
from cpr_contract.model import ModelSpec, SparseOptimizerSpec, state_width
from cpr_trainer.arrays import Floats, Ints
from cpr_trainer.embedding.dynamic.entries import CELL_COLUMNS, ENTRY_COLUMNS
from cpr_trainer.embedding.placement import counted_tables
from cpr_trainer.rates import rate_at


def changes_of(optimizer: SparseOptimizerSpec, state: Floats, gradients: Floats, step: int) -> Floats:
    """Return what a step adds to k different rows, float32 [k, D].

    state: float32 [k, W] with W >= `state_width`, of those rows; brought up to date in place, further columns stay.
    gradients: float32 [k, D], only read. step: that of the job, from 1.
    """
    rate = rate_at(optimizer, step)
    match optimizer.kind:
        case "SGD":
            return gradients * -rate
        case "RowWiseAdagrad":
            return _row_wise_adagrad(optimizer, rate, state[:, 0], gradients)
        case "Adagrad":
            return _adagrad(optimizer, rate, state[:, : gradients.shape[1]], gradients)
        case "Adam":
            dim = gradients.shape[1]
            size = rate * sqrt(1 - optimizer.beta2**step) / (1 - optimizer.beta1**step)
            return _adam(optimizer, size, state[:, :dim], state[:, dim : 2 * dim], gradients)
        case _:
            assert_never(optimizer.kind)


def _row_wise_adagrad(optimizer: SparseOptimizerSpec, rate: float, sums: Floats, gradients: Floats) -> Floats:
    """Adagrad with one sum for a row: s += mean(g^2); row -= lr g / (sqrt(s) + eps). sums: [k].

    As FBGEMM's EXACT_ROWWISE_ADAGRAD and TorchRec's RowWiseAdagrad.
    """
    sums += np.einsum("kd,kd->k", gradients, gradients) / gradients.shape[1]
    steps = np.sqrt(sums)
    steps += optimizer.epsilon
    np.divide(-rate, steps, out=steps)
    return gradients * steps[:, np.newaxis]


def _adagrad(optimizer: SparseOptimizerSpec, rate: float, sums: Floats, gradients: Floats) -> Floats:
    """Adagrad (Duchi et al., JMLR 12, 2011): s += g^2; row -= lr g / (sqrt(s) + eps). sums: [k, D]."""
    sums += gradients * gradients
    changes = np.sqrt(sums)
    changes += optimizer.epsilon
    np.divide(gradients, changes, out=changes)
    changes *= -rate
    return changes


def _adam(optimizer: SparseOptimizerSpec, size: float, means: Floats, squares: Floats, gradients: Floats) -> Floats:
    """Adam (Kingma & Ba, ICLR 2015, in the order of its section 2), lazy as torch.optim.SparseAdam. [k, D] each.

    m += (1 - b1) (g - m); v += (1 - b2) (g^2 - v); row -= size m / (sqrt(v) + eps).
    size is lr sqrt(1 - b2^t) / (1 - b1^t). t is the job's step, not a count of the row's own: nothing but the moments
    has to be saved for it.
    """
    means += (gradients - means) * (1 - optimizer.beta1)
    squares += (gradients * gradients - squares) * (1 - optimizer.beta2)
    changes = np.sqrt(squares)
    changes += optimizer.epsilon
    np.divide(means, changes, out=changes)
    changes *= -size
    return changes


class Assignment:
    """The optimizer of each row: each table may have its own.

    It is found by the row's number (see `Placement`): a table is a range of numbers, but not of slots.

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

    @property
    def uniform(self) -> bool:
        """True if all tables have the same optimizer."""
        return len(self.distinct) == 1

    def numbers_in(self, tables: Ints) -> Ints:
        """Return the number of a row of each table, int64 [k]: the rows of dynamic tables have none of their own."""
        return self._ends[tables] - 1

    def parts(self, numbers: Ints) -> Iterator[tuple[SparseOptimizerSpec, Ints | None]]:
        """Yield each optimizer that has any of these rows, int64 [k], with where in `numbers` they stand; None: all."""
        if self.uniform:
            yield self.distinct[0], None
            return
        which = self.of_table[np.searchsorted(self._ends, numbers, side="right")]
        for place, optimizer in enumerate(self.distinct):
            found = np.flatnonzero(which == place)
            if len(found):
                yield optimizer, found


@dataclass(frozen=True, slots=True)
class BandShape:
    """The rows of a band: `dim` values of type `precision`, and `width` float32 of state."""

    dim: int
    precision: Precision
    width: int


def band_shapes(model: ModelSpec) -> tuple[BandShape, ...]:
    """Return the shape of each band of a `Placement`, with those of cells.

    The state of optimizers is as wide as any table of the band needs it. The entries of dynamic tables follow.
    """
    widths = [0] * len(model.band_dims)
    for band, dim, optimizer in zip(model.bands, model.table_dims, model.table_optimizers, strict=True):
        widths[band] = max(widths[band], state_width(optimizer.kind, dim))
    dynamic = {model.bands[table] for table in model.dynamic_tables}
    of_tables = (
        BandShape(dim, precision, width + ENTRY_COLUMNS * (band in dynamic))
        for band, (dim, precision, width) in enumerate(zip(model.band_dims, model.band_precisions, widths, strict=True))
    )
    of_cells = BandShape(0, "fp32", CELL_COLUMNS)
    return (*of_tables, *[of_cells] * len({model.bands[table] for table in counted_tables(model)}))
