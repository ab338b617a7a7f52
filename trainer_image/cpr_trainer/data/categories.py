"""From categorical columns to ids: every different text is looked at once, and no loop goes over rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cpr_contract.model import DEFAULT_ROW
from cpr_trainer.arrays import Ints
from cpr_trainer.data.arrow_types import as_texts
from cpr_trainer.data.columns import Columns, Input
from cpr_trainer.data.faults import Faults, blame
from cpr_trainer.data.features import NO_ROW, table_rows
from cpr_trainer.data.lists import split
from cpr_trainer.data.row_numbers import rows_of_integers, rows_of_texts, wanted
from cpr_trainer.data.weights import weights_of
from cpr_trainer.data.whole_numbers import as_canonical, canonical
from cpr_trainer.embedding.bags import Bags, Column, FeatureLayout, Int32s
from cprjob_serving.hashes import Cells, hashes


def ids_of(table: Any, columns: Columns, faults: Faults, features: FeatureLayout | None = None) -> Int32s | Bags:
    """Return the ids that the categories of a pyarrow table stand for: int32 [n, T], or bags.

    There are bags if a table pools, and wherever the model states `features`. A category is a string or an integer,
    and an absent one is the empty string. In a bag absent ones are left out. Equal texts have equal ids, whatever
    format they come from. Rows with an id that has no row in its table are noted in `faults`; the ids there mean
    nothing.
    """
    if features is None and not columns.bags:
        ids = np.empty((table.num_rows, len(columns.inputs)), np.int32)
        for place, each in enumerate(columns.inputs):
            ids[:, place] = _ids_of_cells(table, each, faults)
        return ids
    one_each = np.ones(table.num_rows, np.int64)
    found = [
        _bags_of_cells(table, each, columns.separator, faults)
        if each.has_bags
        else Column(_ids_of_cells(table, each, faults), one_each)
        for each in columns.inputs
    ]
    return Bags.of_columns(found, np.array([each.pooling == "Mean" for each in columns.inputs]), features)


def _bags_of_cells(table: Any, used: Input, separator: str | None, faults: Faults) -> Column:
    """Return the ids of a column of bags: the last ones of each, if there are more than the feature takes."""
    lists, lengths, present = split(table.column(used.column), separator)
    weights = None if used.weights is None else weights_of(table, used, separator, present, faults)
    lists, lengths, last = _last(lists, lengths, used.max_length)
    if weights is not None and last is not None:
        weights = weights[last]
    ids = _single_ids(lists, used)
    samples = np.repeat(np.arange(table.num_rows), lengths)
    blame(faults, f"an id in column {used.column}", lists, ids == NO_ROW, _wanted(used), samples)
    return Column(ids, lengths, weights)


def cells_of(table: Any, used: Input, separator: str | None) -> Any:
    """Return the ids of a column that are looked up, as a pyarrow chunked array of texts or numbers."""
    column = table.column(used.column)
    if used.has_bags:
        lists, lengths, _ = split(column, separator)
        column = _last(lists, lengths, used.max_length)[0]
    return as_canonical(column) if used.integers else column


def _last(lists: Any, lengths: Ints, most: int | None) -> tuple[Any, Ints, NDArray[np.bool_] | None]:
    """Return the last `most` ids of each bag, how many these are, and which of all ids, bool [k]; None if all are."""
    if most is None or not len(lengths) or int(lengths.max()) <= most:
        return lists, lengths, None
    before_end = np.repeat(np.cumsum(lengths), lengths) - np.arange(int(lengths.sum()))
    last = before_end <= most
    return lists.filter(pa.array(last)), np.minimum(lengths, most), last


def _ids_of_cells(table: Any, used: Input, faults: Faults) -> Int32s:
    """Return the ids of a column of one id a sample, int32 [n]."""
    column = table.column(used.column)
    ids = _single_ids(column, used)
    blame(faults, f"column {used.column}", column, ids == NO_ROW, _wanted(used))
    return ids


def _single_ids(column: Any, used: Input) -> Int32s:
    """Return the row in its table of each cell, int32 [n], `NO_ROW` where it has none: each text is looked at once."""
    if used.table.ids == "RowNumber" and pa.types.is_integer(column.type):
        found = [rows_of_integers(chunk, used.table) for chunk in column.chunks]
    else:
        found = [_rows_of_chunk(chunk, used) for chunk in column.chunks]
    return np.concatenate([np.empty(0, np.int64), *found]).astype(np.int32)


def _rows_of_chunk(chunk: Any, used: Input) -> Ints:
    """Return the rows of an array of texts or numbers, int64 [n]: a null is the empty text."""
    coded = chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
    texts, wrong = canonical(coded.dictionary) if used.integers else (as_texts(coded.dictionary), None)
    known = _rows_of_texts(pa.concat_arrays([texts, pa.array([b""])]), used)
    if wrong is not None:
        known[:-1][wrong] = NO_ROW
    rows: Ints = known[coded.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)]
    return rows


def _wanted(used: Input) -> str:
    """Return what an id has to be, for a message."""
    hashed = used.table.ids not in {"RowNumber", "Vocabulary"}
    return "a whole number" if hashed and used.integers else wanted(used.table)


def _rows_of_texts(texts: Any, used: Input) -> Ints:
    target = used.table
    if target.ids == "RowNumber":
        return rows_of_texts(texts, target)
    cells = Cells.of_arrow(texts)
    if used.vocabulary is None:
        return table_rows(hashes(cells, target.ids, target.hash_seed), target.rows)
    rows = used.vocabulary.rows(cells)
    return np.where(rows == NO_ROW, DEFAULT_ROW, rows) if target.out_of_range == "DefaultRow" else rows
