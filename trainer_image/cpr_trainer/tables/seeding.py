"""The first values of embedding rows: an integer hash of (seed, table, row, column), the same on every processor.

So a row that nobody pushed to is never read from a save. Changing a constant changes the meaning of every job.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
from numpy.typing import NDArray

from cpr_contract.spec import ModelSpec
from cpr_trainer.arrays import Ints
from cprjob_serving.cpr64 import GOLDEN, mix64

_BITS = 24  # what a float32 holds exactly


class Seeding:
    """First values of a model's rows, uniform in [-s, s) with s = sqrt(1 / rows of the table), as DLRM has them."""

    def __init__(self, model: ModelSpec, seed: int) -> None:
        self._dims = model.table_dims
        tables = np.arange(1, len(model.tables) + 1, dtype=np.uint64)
        self._keys = mix64(mix64(np.uint64(seed % 2**64) + tables * GOLDEN))
        # Two columns come from one hashed word.
        self._columns = np.arange(1, (max(self._dims) + 1) // 2 + 1, dtype=np.uint64) * GOLDEN
        unit = 0.5 ** (_BITS - 1)
        self._scales = np.array([sqrt(1 / table.rows) * unit for table in model.tables], np.float32)

    def values(self, tables: Ints, rows: Ints) -> NDArray[np.float32]:
        """Return the first values of rows, float32 [k, D]. tables, rows: int64 [k], of tables of one dim."""
        dim = self._dims[int(tables[0]) if len(tables) else 0]
        keys = mix64(self._keys[tables] + rows.astype(np.uint64) * GOLDEN)
        words = mix64(keys[:, np.newaxis] + self._columns[: (dim + 1) // 2])
        # Whole numbers in [-2**23, 2**23) are exact in float32, so the product is the only rounding.
        whole = words.astype("<u8", copy=False).view("<i4")[:, :dim] >> (32 - _BITS)
        return whole.astype(np.float32) * self._scales[tables][:, np.newaxis]


def initial_rows(model: ModelSpec, seed: int, table: int, rows: Ints) -> NDArray[np.float32]:
    """Return the first values of some rows (int64 [k]) of one table, float32 [k, D]."""
    return Seeding(model, seed).values(np.full(len(rows), table), rows)
