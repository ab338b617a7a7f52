"""Decodes the columns of a block, as text or as Parquet stores them, to the inputs of the model.

No loop goes over rows: every different text is decoded once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cpr_contract.model import DEFAULT_ROW, TableSpec
from cpr_trainer.arrays import Ints
from cpr_trainer.data.cells import RowErrors, add_errors, groups_of, labels_of_texts, numbers_of, weights_of_samples
from cpr_trainer.data.files import Parsed
from cpr_trainer.data.schema import NO_ROW, Columns, Input, as_texts, count_features, ids_of_hashes, is_text
from cpr_trainer.data.whole_numbers import as_canonical, canonical
from cpr_trainer.embedding.bags import Bags, Column, FeatureLayout, Int32s
from cprjob_serving.hashes import Cells, hashes

#: Decimals that int64 holds, whatever their digits are.
_SHORT = "^[0-9]{1,18}$"
_INTEGER_OR_ABSENT = "^(-?[0-9]+)?$"


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The rows of one block.

    dense: float32 [n, N]. ids: int32 [n, T], int64 if a table is dynamic, or bags. labels: [n], or [n, L] if the model
    predicts L values; uint8, or float32 if there are targets. errors: those of bad rows; the values of these rows are
    undefined. groups: str [n], if there is a group column. sample_weights: float32 [n], if there is a column of them.
    """

    dense: NDArray[np.float32]
    ids: Int32s | Ints | Bags
    labels: NDArray[np.uint8] | NDArray[np.float32]
    errors: RowErrors
    groups: NDArray[np.object_] | None = None
    sample_weights: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.labels)


def decode(parsed: Parsed, columns: Columns, features: FeatureLayout | None = None) -> Rows:
    """Convert the columns of a block; `features`, if the model states any, describes the bags.

    A label is 0 or 1, or one of its texts, a target a finite number. A feature is a finite decimal number. An absent
    one (an empty cell, a null) is 0, and so are features that the data does not have. A weight is a number from 0 to
    `MAX_WEIGHT`. For categories see `_ids_of`.
    """
    table, errors = parsed.table, RowErrors()
    predicted: list[NDArray[Any]] = []
    texts = {each.label: each for each in columns.label_values}
    for name in columns.labels:
        if name in texts:
            predicted.append(labels_of_texts(table.column(name), texts[name], errors))
            continue
        values = numbers_of(table.column(name))
        add_errors(errors, f"column {name}", table.column(name), (values != 0) & (values != 1), "0 or 1")
        predicted.append((values == 1).astype(np.uint8))
    for name in columns.targets:
        values = numbers_of(table.column(name))
        wrong = ~np.isfinite(values)
        add_errors(errors, f"column {name}", table.column(name), wrong, "a number")
        predicted.append(np.where(wrong, 0, values).astype(np.float32))
    labels = predicted[0] if len(predicted) == 1 else np.stack(predicted, axis=1)
    dense = np.zeros((table.num_rows, columns.width), np.float32)
    for place, name in enumerate(columns.counts + columns.numbers):
        values = numbers_of(table.column(name))
        add_errors(errors, f"column {name}", table.column(name), np.isinf(values), "a number or empty")
        values = np.where(np.isfinite(values), values, 0)
        dense[:, place] = count_features(values) if place < len(columns.counts) else values
    groups = None if columns.group is None else groups_of(table.column(columns.group))
    weights = (
        None
        if columns.sample_weight is None
        else weights_of_samples(table.column(columns.sample_weight), columns.sample_weight, errors)
    )
    rows = Rows(dense, _ids_of(table, columns, errors, features), labels, errors, groups, weights)
    return _with_ragged(rows, parsed.ragged) if parsed.ragged else rows


def _with_ragged(rows: Rows, ragged: dict[int, str]) -> Rows:
    """Move the parsed rows to their places between the ragged ones."""
    count = len(rows) + len(ragged)
    places = np.setdiff1d(np.arange(count), np.fromiter(ragged, np.int64))
    dense = np.zeros((count, rows.dense.shape[1]), np.float32)
    labels = np.zeros((count, *rows.labels.shape[1:]), rows.labels.dtype)
    dense[places], labels[places] = rows.dense, rows.labels
    if isinstance(rows.ids, Bags):
        ids: Int32s | Ints | Bags = rows.ids.spread(count, places)
    else:
        ids = np.zeros((count, rows.ids.shape[1]), rows.ids.dtype)
        ids[places] = rows.ids
    groups = None if rows.groups is None else np.full(count, "", np.object_)
    if groups is not None:
        groups[places] = rows.groups
    weights = None if rows.sample_weights is None else np.zeros(count, np.float32)
    if weights is not None:
        weights[places] = rows.sample_weights
    errors = ragged | {int(places[row]): error for row, error in rows.errors.items()}
    return Rows(dense, ids, labels, errors, groups, weights)


# --- Ids


def _ids_of(table: Any, columns: Columns, errors: RowErrors, features: FeatureLayout | None) -> Int32s | Ints | Bags:
    """Return the ids of the categories of a pyarrow table: int32 [n, T], int64 if a table is dynamic, or bags.

    There are bags if a table pools, and if the model states `features`. A category is a string or an integer, and an
    absent one is the empty string. In a bag absent ones are left out. Equal texts have equal ids in every format. Rows
    with an id that has no row in its table are noted in `errors`; their ids are undefined.
    """
    if features is None and not columns.bags:
        ids = np.empty((table.num_rows, len(columns.inputs)), columns.ids_type)
        for place, each in enumerate(columns.inputs):
            ids[:, place] = _ids_of_cells(table, each, errors)
        return ids
    one_each = np.ones(table.num_rows, np.int64)
    found = [
        _ids_of_bags(table, each, columns.separator, errors)
        if each.has_bags
        else Column(_ids_of_cells(table, each, errors), one_each)
        for each in columns.inputs
    ]
    return Bags.of_columns(found, np.array([each.pooling == "Mean" for each in columns.inputs]), features)


def _ids_of_cells(table: Any, used: Input, errors: RowErrors) -> Int32s | Ints:
    """Return the ids of a column of one id a sample, see `_single_ids`."""
    column = table.column(used.column)
    ids, wrong = _single_ids(column, used)
    add_errors(errors, f"column {used.column}", column, wrong, _expected_id(used))
    return ids


def _ids_of_bags(table: Any, used: Input, separator: str | None, errors: RowErrors) -> Column:
    """Return the ids of a column of bags: the last ones of each, if there are more than the feature takes."""
    lists, lengths, presence = split_bags(table.column(used.column), separator)
    weights = None if used.weights is None else _weights_of(table, used, separator, presence, errors)
    lists, lengths, last = _last(lists, lengths, used.max_length)
    if weights is not None and last is not None:
        weights = weights[last]
    ids, wrong = _single_ids(lists, used)
    samples = np.repeat(np.arange(table.num_rows), lengths)
    add_errors(errors, f"an id in column {used.column}", lists, wrong, _expected_id(used), samples)
    return Column(ids, lengths, weights)


def cells_of(table: Any, used: Input, separator: str | None) -> Any:
    """Return the ids of a column that are looked up, as a pyarrow chunked array of texts or numbers."""
    column = table.column(used.column)
    if used.has_bags:
        lists, lengths, _ = split_bags(column, separator)
        column = _last(lists, lengths, used.max_length)[0]
    return as_canonical(column) if used.integers else column


def _last(lists: Any, lengths: Ints, most: int | None) -> tuple[Any, Ints, NDArray[np.bool_] | None]:
    """Return the last `most` ids of each bag, their number, and a mask over all ids, bool [k]; None if all are."""
    if most is None or not len(lengths) or int(lengths.max()) <= most:
        return lists, lengths, None
    before_end = np.repeat(np.cumsum(lengths), lengths) - np.arange(int(lengths.sum()))
    last = before_end <= most
    return lists.filter(pa.array(last)), np.minimum(lengths, most), last


def _single_ids(column: Any, used: Input) -> tuple[Int32s | Ints, NDArray[np.bool_]]:
    """Return the row in its table of each cell, int32 [n], and which cells have none, bool [n].

    In a dynamic table it is the key, int64 [n], and each number is one. Each text is looked up once.
    """
    target, found, missing = used.table, [np.empty(0, np.int64)], [np.empty(0, np.bool_)]
    for chunk in column.chunks:
        if target.ids == "RowNumber" and pa.types.is_integer(chunk.type):
            rows = rows_of_integers(chunk, target)
            found.append(rows)
            missing.append(rows == NO_ROW)
            continue
        coded = chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
        texts, wrong = canonical(coded.dictionary) if used.integers else (as_texts(coded.dictionary), None)
        with_absent = pa.concat_arrays([texts, pa.array([b""])])  # A null is the empty text.
        if target.ids == "RowNumber":
            known = rows_of_texts(with_absent, target)
        elif used.vocabulary is not None:
            known = used.vocabulary.rows(Cells.of_arrow(with_absent))
            if target.out_of_range == "DefaultRow":
                known[known == NO_ROW] = DEFAULT_ROW
        else:
            known = ids_of_hashes(hashes(Cells.of_arrow(with_absent), target.ids, target.hash_seed), target)
        has_none = np.zeros(len(known), np.bool_) if target.ids == "Dynamic" else known == NO_ROW
        if wrong is not None:
            has_none[:-1] |= wrong
        places = coded.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)
        found.append(known[places])
        missing.append(has_none[places])
    ids = np.concatenate(found)
    return ids if target.ids == "Dynamic" else ids.astype(np.int32), np.concatenate(missing)


def _expected_id(used: Input) -> str:
    """Return a description of valid ids, for a message."""
    target = used.table
    if target.ids == "Vocabulary":
        return f"a value of the vocabulary of table {target.name}"
    if target.ids == "RowNumber":
        return "an integer" + (f" from 0 to {target.rows - 1}" if target.out_of_range == "Fail" else "")
    return "a whole number"


def rows_of_integers(integers: Any, target: TableSpec) -> Ints:
    """Return the row of each element of a pyarrow array of integers, int64 [n]: `NO_ROW` if it has none.

    Ids are the numbers of rows: they are checked, not hashed.
    """
    # An unsigned integer beyond int64 becomes a negative one, which is not a row either.
    numbers = integers.cast(pa.int64(), safe=False).fill_null(NO_ROW).to_numpy(zero_copy_only=False)
    return _within(numbers, target, np.ones(len(numbers), np.bool_))


def rows_of_texts(texts: Any, target: TableSpec) -> Ints:
    """Return the row of each element of a pyarrow binary array without nulls, int64 [n]: `NO_ROW` if it has none.

    A row's number is written in decimal digits. The empty text is an absent id.
    """
    short = pc.if_else(pc.match_substring_regex(texts, _SHORT), texts, pa.scalar(None, texts.type))
    numbers = short.cast(pa.int64()).fill_null(NO_ROW).to_numpy(zero_copy_only=False)
    return _within(numbers, target, pc.match_substring_regex(texts, _INTEGER_OR_ABSENT).to_numpy(zero_copy_only=False))


def _within(numbers: Ints, target: TableSpec, excused: NDArray[np.bool_]) -> Ints:
    """Replace numbers outside the table: by its default row if it has one and the number is `excused`."""
    instead = np.where(excused, DEFAULT_ROW, NO_ROW) if target.out_of_range == "DefaultRow" else NO_ROW
    return np.where((numbers >= 0) & (numbers < target.rows), numbers, instead)


# --- Bags: lists in Parquet, cells with a separator in text


#: The size of each bag with its absent ids, int64 [n], and a mask of the ids that are present.
Presence = tuple[Ints, NDArray[np.bool_]]


def split_bags(column: Any, separator: str | None) -> tuple[Any, Ints, Presence]:
    """Return the present ids of a column of bags, as a chunked array, the length of each bag, int64 [n], and a mask.

    The column holds lists, or texts with `separator` between the ids. Absent ids are left out: nulls and empty texts.
    """
    ids, lengths, sizes, masks = [], [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0, np.bool_)]
    for chunk in column.chunks:
        every, of_bags = _flatten(chunk, separator)
        cells = every.dictionary_decode() if pa.types.is_dictionary(every.type) else every
        filled = pc.greater(pc.binary_length(cells).fill_null(0), 0) if is_text(cells.type) else cells.is_valid()
        present = filled.to_numpy(zero_copy_only=False)
        before = np.concatenate(([0], np.cumsum(present, dtype=np.int64)))
        ends = np.cumsum(of_bags)
        lengths.append(before[ends] - before[ends - of_bags])
        ids.append(every.filter(pa.array(present)))
        sizes.append(of_bags)
        masks.append(present)
    presence = np.concatenate(sizes), np.concatenate(masks)
    return pa.chunked_array(ids or [pa.array([], pa.binary())]), np.concatenate(lengths), presence


def _flatten(chunk: Any, separator: str | None) -> tuple[Any, Ints]:
    """Return all values of an array of lists, or of texts with a `separator`, and the length of each, int64 [n]."""
    lists = chunk
    if separator is not None:  # Every different text is split once.
        coded = chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
        lists = pc.split_pattern(coded.dictionary, pattern=separator).take(coded.indices)
    sizes = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return lists.flatten(), sizes


def _weights_of(
    table: Any, used: Input, separator: str | None, presence: Presence, errors: RowErrors
) -> NDArray[np.float32]:
    """Return the weight of each present id of a feature, float32 [k]: its column has a list for each bag.

    Rows with a weight that is not finite, or with more or fewer weights than ids, absent ones included, are noted
    in `errors`; their weights are undefined.
    """
    name, (bag_sizes, present) = str(used.weights), presence
    values, sizes = [pa.array([], pa.binary())], [np.empty(0, np.int64)]
    for chunk in table.column(name).chunks:
        every, of_bags = _flatten(chunk, separator)
        values.append(every)
        sizes.append(of_bags)
    cells, of_rows = pa.chunked_array(values[1:] or values), np.concatenate(sizes)
    fits = of_rows == bag_sizes
    for row in np.flatnonzero(~fits).tolist():
        message = f"column {name} has {of_rows[row]} weights for {bag_sizes[row]} ids in column {used.column}"
        errors.setdefault(row, message)
    of_ids = np.repeat(fits, bag_sizes) & present  # The ids that have a weight,
    of_weights = np.zeros(len(cells), np.bool_)  # and their weights.
    of_weights[np.repeat(fits, of_rows)] = present[np.repeat(fits, bag_sizes)]
    found = numbers_of(cells)[of_weights]
    wrong = ~np.isfinite(found)
    rows = np.repeat(np.arange(len(of_rows)), of_rows)[of_weights]
    add_errors(errors, f"a weight in column {name}", cells.filter(pa.array(of_weights)), wrong, "a number", rows)
    weights = np.zeros(len(present), np.float32)
    weights[of_ids] = np.where(wrong, 0, found)
    return weights[present]
