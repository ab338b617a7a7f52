"""Samples in files: found, indexed, and read by blocks, of which as many stay in memory as shuffling needs."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from cpr_contract.model import ModelSpec
from cpr_contract.spec import DataSpec
from cpr_trainer.data.ahead import Ahead
from cpr_trainer.data.arrow_types import is_category
from cpr_trainer.data.bad_rows import BadRows
from cpr_trainer.data.batch import Batch
from cpr_trainer.data.blocks import CORRECT_COLUMNS, Block, Format, Index, reading
from cpr_trainer.data.columns import Columns
from cpr_trainer.data.layout import Ints, Layout
from cpr_trainer.data.rows import Rows, decode
from cpr_trainer.embedding.bags import Bags, FeatureLayout
from cpr_trainer.errors import DataError

_INDEXED_AT_ONCE = 8
_CORRECT = "Correct evaluation.groupBy: it names a column that has one text or integer a sample."


class TableDataset:
    """The samples of one or many files, in the order of their names.

    Memory is bounded: two windows of `shuffle_rows` rows, and the blocks at their ends, at 4 N + L + 4 F bytes a row
    for N numeric features and F others, or 4 N + 4 L + 4 F with targets; 4 more for each id of a row with bags, and 4
    for its weight.
    """

    def __init__(
        self, data: DataSpec, columns: Columns, model: ModelSpec, form: Format, indices: Sequence[Index]
    ) -> None:
        self._columns = columns
        self._features = FeatureLayout.of(model) if model.features else None
        predicted = len(columns.predicted)
        self._predicted = () if predicted == 1 else (predicted,)
        self._form = form
        self._blocks = tuple(block for index in indices for block in index.blocks)
        self._layout = layout_of(indices)
        self._bad = BadRows(data.max_bad_lines)
        most_rows = 2 * data.shuffle_rows + 4 * max(block.rows for block in self._blocks)
        self._ahead = Ahead(self._blocks, form.fetch, self._decode, most_rows)

    @property
    def layout(self) -> Layout:
        """How the rows lie."""
        return self._layout

    def take(self, indices: Ints) -> Batch:
        """Return the samples at `indices`, int64 [n], without those of bad rows. Raises DataError."""
        numbers = self._layout.blocks_of(indices)
        order = np.argsort(numbers, kind="stable")
        needed, starts = np.unique(numbers[order], return_index=True)
        dense = np.empty((len(indices), self._columns.width), np.float32)
        ids = np.empty((len(indices), len(self._columns.inputs)), np.int64)
        labels = np.empty((len(indices), *self._predicted), np.float32)
        good = np.ones(len(indices), np.bool_)
        groups = None if self._columns.group is None else np.full(len(indices), "", np.object_)
        bags: list[Bags] = []
        parts = np.split(order, starts[1:])
        for number, places, rows in zip(needed.tolist(), parts, self._ahead.get(needed.tolist()), strict=False):
            within = indices[places] - self._layout.starts[number]
            dense[places], labels[places] = rows.dense[within], rows.labels[within]
            if isinstance(rows.ids, Bags):
                bags.append(rows.ids.take(within))
            else:
                ids[places] = rows.ids[within]
            if groups is not None and rows.groups is not None:
                groups[places] = rows.groups[within]
            if rows.faults:
                good[places] = ~np.isin(within, list(rows.faults))
        groups = None if groups is None else groups[good]
        if bags:
            return Batch(dense[good], Bags.join(bags).take(np.argsort(order)[good]), labels[good], groups)
        return Batch(dense, ids, labels, groups) if good.all() else Batch(dense[good], ids[good], labels[good], groups)

    def expect(self, blocks: Ints) -> None:
        """Read these blocks ahead."""
        self._ahead.expect(blocks.tolist())

    def _decode(self, number: int, fetched: Any) -> Rows:
        block = self._blocks[number]
        self._check_group(block, fetched)
        parsed = self._form.parse(block, fetched)
        with reading(block.uri, CORRECT_COLUMNS):
            rows = decode(parsed, self._columns, self._features)
        self._bad.add(number, rows.faults, lambda row: self._form.place(block, row))
        return rows

    def _check_group(self, block: Block, fetched: Any) -> None:
        """Raise DataError if a block has no group column: where data is pinned, nobody has looked for it."""
        name = self._columns.group
        if name is None:
            return
        present = block.file.columns or tuple(fetched.column_names)
        if present.count(name) != 1:
            raise DataError(f"{block.uri} has {present.count(name) or 'no'} columns {name!r}.", _CORRECT)
        if not block.file.columns and not is_category(kind := fetched.schema.field(name).type):
            raise DataError(f"{block.uri}: column {name} is {kind}, not text or an integer.", _CORRECT)


def index_files(uris: Sequence[str], form: Format) -> list[Index]:
    """Index files, several at once. Raises DataError, also if there is no row in them."""
    with ThreadPoolExecutor(max_workers=_INDEXED_AT_ONCE, thread_name_prefix="data-index") as pool:
        indices = list(pool.map(form.index, uris))
    if not any(index.blocks for index in indices):
        raise DataError(f"{', '.join(uris[:2])} has no row: it is empty.", "Check data.uri and the files there.")
    return indices


def layout_of(indices: Sequence[Index]) -> Layout:
    """Return how the rows of these files lie: a file that has to be read in turn is one unit, else each block is."""
    sizes = [block.rows for index in indices for block in index.blocks]
    units: list[int] = []
    for index in indices:
        first = units[-1] + 1 if units else 0
        units += [first + (0 if index.in_turn else place) for place in range(len(index.blocks))]
    return Layout.of(sizes, units)
