"""The first values of embedding rows: an integer hash of (seed, table, row, column), the same on every processor.

So a row that nobody pushed to is never read from a save. Changing a constant changes the meaning of every job.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Self

import numpy as np
from numpy.typing import NDArray

from cpr_contract.spec import ModelSpec
from cpr_trainer.arrays import Ints
from cprjob_serving.cpr64 import GOLDEN, mix64

_BITS = 24  # what a float32 holds exactly


class Seeding:
    """First values of tables' rows, uniform in [-s, s) with s = sqrt(1 / rows of the table), as DLRM has them.

    Table t has `rows`[t] rows of `dims`[t] values. A first value follows from the seed, the table's place t, the row,
    the column, and how many rows there are.
    """

    def __init__(self, rows: Sequence[int], dims: Sequence[int], seed: int) -> None:
        self.rows, self.dims, self.seed = tuple(rows), tuple(dims), seed
        tables = np.arange(1, len(rows) + 1, dtype=np.uint64)
        self._keys = mix64(mix64(np.uint64(seed % 2**64) + tables * GOLDEN))
        # Two columns come from one hashed word.
        self._columns = np.arange(1, (max(dims) + 1) // 2 + 1, dtype=np.uint64) * GOLDEN
        unit = 0.5 ** (_BITS - 1)
        self._scales = np.array([sqrt(1 / each) * unit for each in rows], np.float32)

    @classmethod
    def of(cls, model: ModelSpec, seed: int) -> Self:
        """Return that of a model's tables."""
        return cls([table.rows for table in model.tables], model.table_dims, seed)

    def values(self, tables: Ints, rows: Ints) -> NDArray[np.float32]:
        """Return the first values of rows, float32 [k, D]. tables, rows: int64 [k], of tables of one dim."""
        dim = self.dims[int(tables[0]) if len(tables) else 0]
        keys = mix64(self._keys[tables] + rows.astype(np.uint64) * GOLDEN)
        words = mix64(keys[:, np.newaxis] + self._columns[: (dim + 1) // 2])
        # Whole numbers in [-2**23, 2**23) are exact in float32, so the product is the only rounding.
        whole = words.astype("<u8", copy=False).view("<i4")[:, :dim] >> (32 - _BITS)
        return whole.astype(np.float32) * self._scales[tables][:, np.newaxis]


def initial_rows(model: ModelSpec, seed: int, table: int, rows: Ints) -> NDArray[np.float32]:
    """Return the first values of some rows (int64 [k]) of one table, float32 [k, D]."""
    return Seeding.of(model, seed).values(np.full(len(rows), table), rows)
