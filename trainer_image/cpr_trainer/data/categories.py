"""From categorical columns to ids: every different text is looked at once, and no loop goes over rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cpr_contract.spec import ColumnsSpec, TableSpec
from cpr_trainer.arrays import Ints
from cpr_trainer.bags import Bags, Int32s
from cpr_trainer.data.cells import Cells
from cpr_trainer.data.faults import Faults, blame
from cpr_trainer.data.features import NO_ROW, table_rows
from cpr_trainer.data.murmur3 import murmur3
from cpr_trainer.data.row_numbers import rows_of_integers, rows_of_texts, wanted
from cpr_trainer.data.xxh64 import xxh64
from cpr_trainer.hashing import U64

_TEXTS = frozenset((pa.string(), pa.large_string(), pa.binary(), pa.large_binary()))


def ids_of(table: Any, columns: ColumnsSpec, tables: Sequence[TableSpec], faults: Faults) -> Int32s | Bags:
    """Return the ids that the categories of a pyarrow table stand for: int32 [n, T], or bags if a table pools.

    A category is a string or an integer, and an absent one is the empty string. In a bag absent ones are left out.
    Equal texts have equal ids, whatever format they come from. Rows with an id that has no row in its table are noted
    in `faults`; the ids there mean nothing.
    """
    if not any(target.pooling for target in tables):
        ids = np.empty((table.num_rows, len(tables)), np.int32)
        for place, (name, target) in enumerate(zip(columns.categories, tables, strict=True)):
            ids[:, place] = _ids_of_cells(table, name, target, faults)
        return ids
    found = []
    for name, target in zip(columns.categories, tables, strict=True):
        if target.pooling:
            lists, lengths = split(table.column(name), columns.separator)
            ids = _single_ids(lists, target)
            samples = np.repeat(np.arange(table.num_rows), lengths)
            blame(faults, f"an id in column {name}", lists, ids == NO_ROW, wanted(target), samples)
            found.append((ids, lengths))
        else:
            found.append((_ids_of_cells(table, name, target, faults), np.ones(table.num_rows, np.int64)))
    return Bags.of_columns(found, np.array([target.pooling == "Mean" for target in tables]))


def split(column: Any, separator: str | None) -> tuple[Any, Ints]:
    """Return all ids of a column of bags, as a pyarrow chunked array, and the length of each bag, int64 [n].

    The column holds lists, or texts with `separator` between the ids. Absent ids are left out: nulls and empty texts.
    """
    ids, lengths = [], [np.empty(0, np.int64)]
    for chunk in column.chunks:
        lists = chunk if separator is None else _split_texts(chunk, separator)
        every = lists.flatten()
        sizes = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        present = _present(every)
        kept = np.concatenate(([0], np.cumsum(present, dtype=np.int64)))
        ends = np.cumsum(sizes)
        lengths.append(kept[ends] - kept[ends - sizes])
        ids.append(every.filter(pa.array(present)))
    return pa.chunked_array(ids or [pa.array([], pa.binary())]), np.concatenate(lengths)


def _split_texts(coded: Any, separator: str) -> Any:
    """Return a dictionary array of texts as an array of lists: every different text is split once."""
    lists = pc.split_pattern(coded.dictionary, pattern=separator)
    return lists.take(coded.indices)


def _present(cells: Any) -> Any:
    """Return which cells are neither null nor the empty text, bool [n]."""
    if pa.types.is_dictionary(cells.type):
        cells = cells.dictionary_decode()
    is_text = cells.type in _TEXTS
    present = pc.greater(pc.binary_length(cells).fill_null(0), 0) if is_text else cells.is_valid()
    return present.to_numpy(zero_copy_only=False)


def _ids_of_cells(table: Any, name: str, target: TableSpec, faults: Faults) -> Int32s:
    """Return the ids of a column of one id a sample, int32 [n]."""
    column = table.column(name)
    ids = _single_ids(column, target)
    blame(faults, f"column {name}", column, ids == NO_ROW, wanted(target))
    return ids


def _single_ids(column: Any, target: TableSpec) -> Int32s:
    """Return the row in its table of each cell, int32 [n], `NO_ROW` where it has none: each text is looked at once."""
    numbers = target.ids == "RowNumber" and pa.types.is_integer(column.type)
    rows_of = rows_of_integers if numbers else _rows_of_chunk
    parts = [np.empty(0, np.int64), *(rows_of(chunk, target) for chunk in column.chunks)]
    return np.concatenate(parts).astype(np.int32)


def _rows_of_chunk(chunk: Any, target: TableSpec) -> Ints:
    """Return the rows of an array of texts or numbers, int64 [n]: a null is the empty text."""
    coded = chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
    is_number = pa.types.is_integer(coded.dictionary.type) or pa.types.is_boolean(coded.dictionary.type)
    texts = coded.dictionary.cast(pa.string() if is_number else pa.binary()).cast(pa.binary())
    known = _rows_of_texts(pa.concat_arrays([texts, pa.array([b""])]), target)
    rows: Ints = known[coded.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)]
    return rows


def _rows_of_texts(texts: Any, target: TableSpec) -> Ints:
    if target.ids == "RowNumber":
        return rows_of_texts(texts, target)
    return table_rows(_hashes(Cells.of_arrow(texts), target), target.rows)


def _hashes(cells: Cells, target: TableSpec) -> U64:
    match target.ids:
        case "XXH64":
            return xxh64(cells, target.hash_seed)
        case "Murmur3":
            return murmur3(cells, target.hash_seed)[0]
        case _:
            return cells.hashes()
