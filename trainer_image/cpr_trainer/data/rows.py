"""From the columns of a table, as text or as Parquet stores them, to what the model takes: no loop over rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpr_trainer.data.blocks import Parsed
from cpr_trainer.data.categories import ids_of
from cpr_trainer.data.columns import Columns
from cpr_trainer.data.faults import Faults, blame
from cpr_trainer.data.features import count_features
from cpr_trainer.data.groups import groups_of
from cpr_trainer.data.numbers import numbers_of
from cpr_trainer.embedding.bags import Bags, FeatureLayout


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The rows of one block.

    dense: float32 [n, N]. ids: int32 [n, T], or bags. labels: [n], or [n, L] if so many are predicted; uint8, or
    float32 if there are targets. faults: what is wrong with rows that are no samples, by row; their values mean
    nothing. groups: str [n], if there is a group column.
    """

    dense: NDArray[np.float32]
    ids: NDArray[np.int32] | Bags
    labels: NDArray[np.uint8] | NDArray[np.float32]
    faults: Faults
    groups: NDArray[np.object_] | None = None

    def __len__(self) -> int:
        return len(self.labels)


def decode(parsed: Parsed, columns: Columns, features: FeatureLayout | None = None) -> Rows:
    """Convert the columns of a block; `features`, if the model states any, describes the bags.

    A label is 0 or 1, a target a finite number. A feature is a finite decimal number; where it is absent (an empty
    cell, a null) it is 0, and so are features that the data does not have. For categories see `ids_of`.
    """
    table, faults = parsed.table, Faults()
    labels = _labels(table, columns, faults)
    dense = np.zeros((table.num_rows, columns.width), np.float32)
    for place, name in enumerate(columns.counts + columns.numbers):
        values = numbers_of(table.column(name))
        blame(faults, f"column {name}", table.column(name), np.isinf(values), "a number or empty")
        values = np.where(np.isfinite(values), values, 0)
        dense[:, place] = count_features(values) if place < len(columns.counts) else values
    groups = None if columns.group is None else groups_of(table.column(columns.group))
    rows = Rows(dense, ids_of(table, columns, faults, features), labels, faults, groups)
    return _spread(rows, parsed.ragged) if parsed.ragged else rows


def _labels(table: Any, columns: Columns, faults: Faults) -> NDArray[Any]:
    """Return what is predicted, see `Rows`; note the rows where it is absent or wrong."""
    found: list[NDArray[Any]] = []
    for name in columns.labels:
        values = numbers_of(table.column(name))
        blame(faults, f"column {name}", table.column(name), (values != 0) & (values != 1), "0 or 1")
        found.append((values == 1).astype(np.uint8))
    for name in columns.targets:
        values = numbers_of(table.column(name))
        wrong = ~np.isfinite(values)
        blame(faults, f"column {name}", table.column(name), wrong, "a number")
        found.append(np.where(wrong, 0, values).astype(np.float32))
    return found[0] if len(found) == 1 else np.stack(found, axis=1)


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
    groups = None if rows.groups is None else np.full(count, "", np.object_)
    if groups is not None:
        groups[places] = rows.groups
    return Rows(dense, ids, labels, ragged | {int(places[row]): fault for row, fault in rows.faults.items()}, groups)
