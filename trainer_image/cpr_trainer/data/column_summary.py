"""The summary of one column: its types, range, missing cells, and the number of different values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cpr_contract.requests import MAX_VALUES, ColumnStats
from cpr_trainer.arrays import Ints
from cpr_trainer.data.csv_signs import CsvSigns
from cpr_trainer.data.decode import split_bags
from cpr_trainer.data.dialect import Dialect
from cpr_trainer.data.schema import is_list, is_number, is_text
from cpr_trainer.data.whole_numbers import Spellings
from cprjob_serving.hashes import U64, Cells

#: The kinds of text, from the narrowest to the widest: a column has the kind of its widest cell.
_KINDS = ("empty", "integer", "number", "text")
_NUMERIC_TEXTS = (("integer", pa.int64()), ("number", pa.float64()))
_SKETCH = 4096


def can_be(convert: Callable[..., object], *values: object) -> bool:
    """Return whether a conversion raises no ValueError."""
    try:
        convert(*values)
    except ValueError:  # ArrowInvalid is one.
        return False
    return True


class ColumnSummary:
    """The statistics of one column, block by block; of the ids in it, if it has lists, or texts with a `separator`."""

    def __init__(self, name: str, separator: str | None = None, dialect: Dialect | None = None) -> None:
        self._name = name
        self._separator = separator
        self._bags, self._ids_in_bags, self._longest_bag = 0, 0, 0
        self._text_kind = _KINDS[0]
        self._types = dict[str, None]()  # those of cells other than texts, in the order of their first
        self._missing = 0
        self._range: tuple[float, float] | None = None
        self._whole, self._finite = True, True
        self._values = dict[bytes, int]()
        self._order: _Order | None = _Order()
        self.distinct: Distinct | None = Distinct()
        self.spellings = Spellings()
        self.csv_signs = None if dialect is None else CsvSigns(dialect)

    def add(self, column: Any) -> None:
        """Add the cells of one more block, a pyarrow chunked array."""
        of_lists = is_list(column.type) and not pa.types.is_nested(column.type.value_type)
        if self._order is not None and not self._order.continues(column):
            self._order = None
        if len(column) and (self._separator is not None or of_lists):
            column, lengths, _ = split_bags(column, self._separator)
            self._bags += len(lengths)
            self._ids_in_bags += int(lengths.sum())
            self._longest_bag = max(self._longest_bag, int(lengths.max()))
            self._missing += int((lengths == 0).sum())
        for chunk in column.chunks:
            if pa.types.is_nested(chunk.type):
                self._types[str(chunk.type)], self.distinct = None, None
                self._missing += chunk.null_count
            else:
                self._add_values(chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode())

    def stats(self, feeds: str) -> ColumnStats:
        """Return the statistics of all cells."""
        lowest, highest = self._range or (None, None)
        distinct, repeated = (None, None) if self.distinct is None else self.distinct.counts()
        stats = ColumnStats(
            name=self._name,
            kind=self._kind(),
            missing=self._missing,
            lowest=lowest,
            highest=highest,
            distinct=distinct,
            feeds=feeds,
            repeated=repeated,
            values=tuple((value.decode("utf-8", "replace"), count) for value, count in self._values.items()),
            whole=self._range is not None and self._whole,
            finite=self._finite,
            ordered=self._order is not None and not self._bags,
        )
        if not self._bags:
            return stats
        mean = self._ids_in_bags / self._bags
        return replace(stats, kind=f"list of {stats.kind}", bag_mean=mean, bag_most=self._longest_bag)

    def _kind(self) -> str:
        """Return the types of all cells: files may differ."""
        texts = [] if self._types and self._text_kind == _KINDS[0] else [self._text_kind]
        return " or ".join([*self._types, *texts])

    def _add_values(self, coded: Any) -> None:
        """Add a dictionary array: each different value is read once."""
        values, of_texts = coded.dictionary, is_text(coded.dictionary.type)
        texts = values.cast(pa.binary() if of_texts else pa.string()).cast(pa.binary())
        present = pc.greater(pc.binary_length(texts), 0)
        places = coded.indices.fill_null(len(values)).to_numpy(zero_copy_only=False)
        occurrences = np.bincount(places, minlength=len(values) + 1)[:-1]
        # A dictionary may have values that no cell has.
        filled = present.to_numpy(zero_copy_only=False) & (occurrences > 0)
        self._missing += len(places) - int(occurrences[filled].sum())
        texts = texts.filter(pa.array(filled))
        if self.distinct is not None:
            self.distinct.add(Cells.of_arrow(texts).hashes(), occurrences[filled])
        self._count_values(texts, occurrences[filled])
        if of_texts or pa.types.is_integer(values.type):
            self.spellings.add(texts)
        if self.csv_signs is not None:
            self.csv_signs.add(texts)
        if not of_texts:
            if not pa.types.is_null(values.type):
                self._types[str(values.type)] = None
            if is_number(values.type):
                self._widen(values)
        elif self._text_kind != "text" and len(texts):
            kind = next((kind for kind, to in _NUMERIC_TEXTS if can_be(texts.cast, to)), "text")
            self._text_kind = max(self._text_kind, kind, key=_KINDS.index)
            if self._text_kind == "text":
                self._range = None
            else:
                self._widen(texts)

    def _count_values(self, texts: Any, occurrences: Ints) -> None:
        """Count the cells of the first values: all cells, if there are at most MAX_VALUES different values."""
        for value, count in zip(texts[:MAX_VALUES].to_pylist(), occurrences.tolist(), strict=False):
            if value in self._values or len(self._values) < MAX_VALUES:
                self._values[value] = self._values.get(value, 0) + count

    def _widen(self, values: Any) -> None:
        numbers = values.cast(pa.float64(), safe=False)
        bounds = pc.min_max(numbers)
        is_whole = pc.and_(pc.is_finite(numbers), pc.equal(numbers, pc.floor(numbers)))
        self._whole &= pc.all(pc.or_(pc.is_nan(numbers), is_whole)).as_py() is not False
        self._finite &= pc.all(pc.is_finite(numbers)).as_py() is not False
        if (low := bounds["min"].as_py()) is not None:
            known = self._range or (low, low)
            self._range = (min(known[0], low), max(known[1], bounds["max"].as_py()))


class Distinct:
    """The number of different values, from the smallest of their hashes (Bar-Yossef et al., 2002).

    Exact while there are fewer than 4096; above that it follows from the density of the k smallest hashes, with a
    standard error of 1 / sqrt(k). The occurrences of these values are counted: a hash that is among the smallest at the
    end was so from its first occurrence on.
    """

    def __init__(self) -> None:
        self._smallest = np.empty(0, np.uint64)
        self._occurrences = np.empty(0, np.int64)

    def add(self, hashes: U64, occurrences: Ints) -> None:
        """Count values by their hashes, uint64 [n], which may repeat. occurrences: int64 [n], of each."""
        if len(self._smallest) == _SKETCH:
            near = hashes <= self._smallest[-1]
            hashes, occurrences = hashes[near], occurrences[near]
        merged, places = np.unique(np.concatenate((self._smallest, hashes)), return_inverse=True)
        sums = np.zeros(len(merged), np.int64)
        np.add.at(sums, places, np.concatenate((self._occurrences, occurrences)))
        self._smallest, self._occurrences = merged[:_SKETCH], sums[:_SKETCH]

    def counts(self) -> tuple[int, int]:
        """Return the number of different values, and of those that occur at least twice."""
        repeated = int(np.count_nonzero(self._occurrences > 1))
        if len(self._smallest) < _SKETCH:
            return len(self._smallest), repeated
        distinct = (_SKETCH - 1) * 2.0**64 / float(self._smallest[-1])
        return round(distinct), round(distinct * repeated / _SKETCH)

    def merge(self, other: Distinct) -> None:
        """Add all values of another column."""
        self.add(other._smallest, other._occurrences)


class _Order:
    """The last value of a column that has not fallen so far."""

    def __init__(self) -> None:
        self._last: Any = None  # float or bytes

    def continues(self, column: Any) -> bool:
        """Return whether the values of one more block, a pyarrow chunked array, do not fall either."""
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        values = column.drop_null()
        if is_text(column.type):
            values = values.cast(pa.binary())
            values = values.filter(pc.greater(pc.binary_length(values), 0))
        elif not is_number(column.type):
            return False
        if can_be(values.cast, pa.float64()):
            values = values.cast(pa.float64())
        if not len(values):
            return True
        first, last = values[0].as_py(), values[-1].as_py()
        follows = self._last is None or (isinstance(first, type(self._last)) and first >= self._last)
        self._last = last
        return follows and not pc.any(pc.less(values[1:], values[:-1])).as_py()
