"""Click logs in the Criteo layout, held in memory in compact form: 53 + 4 T bytes a row.

A line is a label, 13 integers (which may be empty or negative) and 26 categorical strings (of any length, empty
too), separated by tabs, without header. Table t takes the t-th categorical column; a model with fewer than 26 tables
leaves the last columns out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from cpr_contract.spec import DENSE_FEATURES, TableSpec
from cpr_trainer.data.bad_lines import BadLines
from cpr_trainer.data.batch import Batch
from cpr_trainer.data.cells import Cells
from cpr_trainer.data.criteo_stream import CATEGORIES, INTEGERS, LABEL, raw_blocks
from cpr_trainer.data.features import check_tables, dense_features, table_rows
from cpr_trainer.errors import DataError


class CriteoDataset:
    """The samples of one file, as arrays: dense float32 [rows, 13], ids int32 [rows, T], labels uint8 [rows]."""

    def __init__(self, dense: NDArray[np.float32], ids: NDArray[np.int32], labels: NDArray[np.uint8]) -> None:
        self._dense = dense
        self._ids = ids
        self._labels = labels

    @property
    def rows(self) -> int:
        """Number of samples."""
        return len(self._labels)

    def take(self, indices: NDArray[np.int64]) -> Batch:
        """Return the samples at `indices`, int64 [n]."""
        return Batch(
            self._dense[indices], self._ids[indices].astype(np.int64), self._labels[indices].astype(np.float32)
        )


def read_criteo(stream: BinaryIO, name: str, tables: Sequence[TableSpec], max_bad_lines: int) -> CriteoDataset:
    """Read a plain or gzip stream to its end; `name` is what errors call it.

    Bad lines (a wrong number of columns, a non-integer among the integers, a label that is not 0 or 1) are skipped,
    up to `max_bad_lines`. Raises DataError beyond that, and for data that cannot be read or has no usable line.
    """
    check_tables(tables)
    bad = BadLines(name, max_bad_lines)
    growing = _GrowingArrays(len(tables))
    columns = [LABEL, *INTEGERS, *CATEGORIES[: len(tables)]]
    parsed = 0
    try:
        for block in raw_blocks(stream, name, columns, bad.skip_ragged):
            _convert(block, parsed, tables, bad, growing)
            parsed += block.num_rows
    except DataError:
        bad.check()  # Too many ragged lines stop the parser, and say more than its error does.
        raise
    bad.check()
    if not growing.rows:
        raise DataError(
            f"{name} has no usable line.", "Check that it is in the Criteo layout: 40 columns, tabs between."
        )
    return growing.finish()


def _convert(block: Any, first_row: int, tables: Sequence[TableSpec], bad: BadLines, growing: _GrowingArrays) -> None:
    """Append a block's good lines; `first_row` is the number of rows parsed before it."""
    labels, good = Cells.of_arrow(block.column(0)).flags()
    counts = np.empty((block.num_rows, DENSE_FEATURES), np.int64)
    for place in range(DENSE_FEATURES):
        counts[:, place], valid = Cells.of_arrow(block.column(1 + place)).integers()
        good &= valid
    ids = np.empty((block.num_rows, len(tables)), np.int32)
    for place, table in enumerate(tables):
        ids[:, place] = table_rows(Cells.of_arrow(block.column(1 + DENSE_FEATURES + place)).hashes(), table.rows)
    if not good.all():
        bad.add_cells([(first_row + row, _first_fault(block, row)) for row in np.flatnonzero(~good).tolist()])
    if block.num_rows:
        bad.check(int(bad.line_of(np.array([first_row + block.num_rows - 1]))[0]))
    growing.append(dense_features(counts)[good], ids[good], labels[good])


def _first_fault(block: Any, row: int) -> str:
    """Say which cell of a bad row is wrong, what it holds and what it should hold."""
    line = block.slice(row, 1)
    cells = Cells.of_arrow(line.column(0))
    if not cells.flags()[1][0]:
        return f"column 1 ({LABEL}) is {cells.text(0)!r}, not 0 or 1"
    for place, column in enumerate(INTEGERS, start=1):
        cells = Cells.of_arrow(line.column(place))
        if not cells.integers()[1][0]:
            return f"column {place + 1} ({column}) is {cells.text(0)!r}, not an integer or empty"
    raise AssertionError("the row has no fault")


class _GrowingArrays:
    """Arrays that grow by a quarter where they lie: at the end they are all the memory there is."""

    def __init__(self, tables: int) -> None:
        self.rows = 0
        self._dense = np.empty((0, DENSE_FEATURES), np.float32)
        self._ids = np.empty((0, tables), np.int32)
        self._labels = np.empty(0, np.uint8)

    def append(self, dense: NDArray[np.float32], ids: NDArray[np.int32], labels: NDArray[np.uint8]) -> None:
        end = self.rows + len(labels)
        if end > len(self._labels):
            self._resize(end + end // 4)
        self._dense[self.rows : end] = dense
        self._ids[self.rows : end] = ids
        self._labels[self.rows : end] = labels
        self.rows = end

    def finish(self) -> CriteoDataset:
        self._resize(self.rows)
        return CriteoDataset(self._dense, self._ids, self._labels)

    def _resize(self, rows: int) -> None:
        # Unlike np.concatenate this moves pages, not bytes, and never holds two copies.
        self._dense.resize((rows, DENSE_FEATURES), refcheck=False)
        self._ids.resize((rows, self._ids.shape[1]), refcheck=False)
        self._labels.resize(rows, refcheck=False)
