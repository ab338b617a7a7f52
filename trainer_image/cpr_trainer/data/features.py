"""From raw columns to what the model takes; the same for every source of samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cpr_contract.model import TableSpec
from cpr_trainer.errors import DataError
from cprjob_serving.hashes import U64

MOST_TABLE_ROWS = 2**31 - 1
#: Stands for the row of an id that has none; its sample is a bad one.
NO_ROW = -1


def count_features(counts: NDArray[np.int64] | NDArray[np.float64]) -> NDArray[np.float32]:
    """Return log(1 + max(count, 0)), float32, of any shape; missing counts come as 0.

    The columns are counts: the few negative ones (-1, -2) are marks for "unknown" and are treated as missing.
    Computed in double precision, so that the rounded result is the same on every machine.
    """
    return np.log1p(np.maximum(counts, 0).astype(np.float64)).astype(np.float32)


def table_rows(hashes: U64, rows: int) -> NDArray[np.int64]:
    """Return the row of each hashed value in a table of `rows` rows, int64 in [0, rows)."""
    return (hashes % np.uint64(rows)).astype(np.int64)


def check_tables(tables: Sequence[TableSpec], most: int) -> None:
    """Raise DataError if data with up to `most` categories cannot feed `tables`: table t takes the t-th."""
    if not 1 <= len(tables) <= most:
        raise DataError(
            f"The model has {len(tables)} tables, the data {most} categorical columns.",
            f"Give the model 1 to {most} tables.",
        )
    for table in tables:
        if not 1 <= table.rows <= MOST_TABLE_ROWS:
            raise DataError(
                f"Table {table.name} has {table.rows} rows.",
                f"Give it 1 to {MOST_TABLE_ROWS}; ids are kept in 4 bytes.",
            )
