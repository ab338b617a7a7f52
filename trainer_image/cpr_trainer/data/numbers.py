"""Columns of numbers, as Parquet or text stores them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

_LARGEST = float(np.finfo(np.float32).max)


def numbers_of(column: Any) -> NDArray[np.float64]:
    """Return a column as numbers, float64 [n]: absent is NaN, and what is no number that float32 holds is infinite."""
    parsed = pa.chunked_array([_parsed(chunk) for chunk in column.chunks], pa.float64())
    values: NDArray[np.float64] = parsed.to_numpy()
    usable = np.abs(values) <= _LARGEST
    if usable.all():
        return values
    absent = parsed.is_null().to_numpy()
    return np.where(absent, np.nan, np.where(usable, values, np.inf))


def _parsed(column: Any) -> Any:
    """Return a column as pyarrow doubles: absent is null, what is no number NaN."""
    if not pa.types.is_binary(column.type):
        return column.cast(pa.float64(), safe=False)
    present = pc.if_else(pc.equal(pc.binary_length(column), 0), pa.scalar(None, column.type), column)
    try:
        return present.cast(pa.float64())
    except pa.ArrowInvalid:  # Some cell is none: look at each different one.
        unique = present.dictionary_encode()
        values = pa.array([_parsed_cell(cell) for cell in unique.dictionary], pa.float64())
        return values.take(unique.indices)


def _parsed_cell(cell: Any) -> float:
    try:
        return float(cell.cast(pa.float64()).as_py())
    except pa.ArrowInvalid:
        return float("nan")
