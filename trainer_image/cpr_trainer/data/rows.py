"""From the columns of a table, as text or as Parquet stores them, to what the model takes: no loop over rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cpr_contract.spec import DENSE_FEATURES, ColumnsSpec, TableSpec
from cpr_trainer.bags import Bags
from cpr_trainer.data.blocks import Parsed
from cpr_trainer.data.categories import ids_of
from cpr_trainer.data.faults import Faults, blame
from cpr_trainer.data.features import count_features

_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The rows of one block.

    dense: float32 [n, 13]. ids: int32 [n, T], or bags. labels: [n], or [n, L] if so many are predicted; uint8, or
    float32 if there are targets. faults: what is wrong with rows that are no samples, by row; their values mean
    nothing.
    """

    dense: NDArray[np.float32]
    ids: NDArray[np.int32] | Bags
    labels: NDArray[np.uint8] | NDArray[np.float32]
    faults: Faults

    def __len__(self) -> int:
        return len(self.labels)


def decode(parsed: Parsed, columns: ColumnsSpec, tables: Sequence[TableSpec]) -> Rows:
    """Convert the columns of a block with as many categories as there are `tables`.

    A label is 0 or 1, a target a finite number. A feature is a finite decimal number; where it is absent (an empty
    cell, a null) it is 0, and so are features that the data does not have. For categories see `ids_of`.
    """
    table, faults = parsed.table, Faults()
    labels = _labels(table, columns, faults)
    dense = np.zeros((table.num_rows, DENSE_FEATURES), np.float32)
    for place, name in enumerate(columns.counts + columns.numbers):
        values = _numbers(table.column(name))
        blame(faults, f"column {name}", table.column(name), np.isinf(values), "a number or empty")
        values = np.where(np.isfinite(values), values, 0)
        dense[:, place] = count_features(values) if place < len(columns.counts) else values
    rows = Rows(dense, ids_of(table, columns, tables, faults), labels, faults)
    return _spread(rows, parsed.ragged) if parsed.ragged else rows


def _labels(table: Any, columns: ColumnsSpec, faults: Faults) -> NDArray[Any]:
    """Return what is predicted, see `Rows`; note the rows where it is absent or wrong."""
    found: list[NDArray[Any]] = []
    for name in columns.labels:
        values = _numbers(table.column(name))
        blame(faults, f"column {name}", table.column(name), (values != 0) & (values != 1), "0 or 1")
        found.append((values == 1).astype(np.uint8))
    for name in columns.targets:
        values = _numbers(table.column(name))
        wrong = ~np.isfinite(values)
        blame(faults, f"column {name}", table.column(name), wrong, "a number")
        found.append(np.where(wrong, 0, values).astype(np.float32))
    return found[0] if len(found) == 1 else np.stack(found, axis=1)


def _numbers(column: Any) -> NDArray[np.float64]:
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


def _spread(rows: Rows, ragged: dict[int, str]) -> Rows:
    """Put the rows that were parsed at the places that they have among the ragged ones."""
    count = len(rows) + len(ragged)
    places = np.setdiff1d(np.arange(count), np.fromiter(ragged, np.int64))
    dense = np.zeros((count, rows.dense.shape[1]), np.float32)
    labels = np.zeros((count, *rows.labels.shape[1:]), rows.labels.dtype)
    dense[places], labels[places] = rows.dense, rows.labels
    if isinstance(rows.ids, Bags):
        ids: NDArray[np.int32] | Bags = rows.ids.spread(count, places)
    else:
        ids = np.zeros((count, rows.ids.shape[1]), np.int32)
        ids[places] = rows.ids
    return Rows(dense, ids, labels, ragged | {int(places[row]): fault for row, fault in rows.faults.items()})
