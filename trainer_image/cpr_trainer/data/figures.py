"""Figures of a column, gathered block by block: its type, its range, how many different values it has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cpr_contract.requests import ColumnFigures
from cpr_trainer.arrays import Ints
from cpr_trainer.data.lists import split
from cpr_trainer.data.whole_numbers import Spellings
from cprjob_serving.hashes import U64, Cells

#: Of text, from the narrowest to the widest: a column is what all its cells are.
_KINDS = ("empty", "integer", "number", "text")
_NUMERIC_TEXTS = (("integer", pa.int64()), ("number", pa.float64()))
_SKETCH = 4096


class Distinct:
    """The number of different values, from the smallest of their hashes (Bar-Yossef et al., 2002).

    Exact while there are fewer than 4096; later the k-th smallest of k hashes tells how dense they lie, with a standard
    error of 1 / sqrt(k).
    """

    def __init__(self) -> None:
        self._smallest = np.empty(0, np.uint64)

    def add(self, hashes: U64) -> None:
        """Count values by their hashes, uint64 [n]."""
        if len(self._smallest) == _SKETCH:
            hashes = hashes[hashes < self._smallest[-1]]
        self._smallest = np.unique(np.concatenate((self._smallest, hashes)))[:_SKETCH]

    def count(self) -> int:
        """Return the number of different values."""
        if len(self._smallest) < _SKETCH:
            return len(self._smallest)
        return round((_SKETCH - 1) * 2.0**64 / float(self._smallest[-1]))


class BagLengths:
    """How many ids the bags of a column have."""

    def __init__(self) -> None:
        self._bags = 0
        self._ids = 0
        self.most = 0

    def add(self, lengths: Ints) -> None:
        """Count bags by their lengths, int64 [n], n > 0."""
        self._bags += len(lengths)
        self._ids += int(lengths.sum())
        self.most = max(self.most, int(lengths.max()))

    @property
    def mean(self) -> float:
        """Ids a bag, the empty ones included."""
        return self._ids / self._bags


class ColumnSummary:
    """Gathers the figures of one column; of the ids in it, where it has lists, or texts with a `separator`."""

    def __init__(self, name: str, separator: str | None = None) -> None:
        self._name = name
        self._separator = separator
        self._bags: BagLengths | None = None
        self._kind = _KINDS[0]
        self._missing = 0
        self._range: tuple[float, float] | None = None
        self._distinct: Distinct | None = Distinct()
        self.spellings = Spellings()

    def add(self, column: Any) -> None:
        """Take the cells of one more block, a pyarrow chunked array."""
        if len(column) and (self._separator is not None or _is_bag(column.type)):
            column, lengths, _ = split(column, self._separator)
            self._bags = self._bags or BagLengths()
            self._bags.add(lengths)
            self._missing += int((lengths == 0).sum())
        for chunk in column.chunks:
            if pa.types.is_nested(chunk.type):
                self._kind, self._distinct = str(chunk.type), None
                self._missing += chunk.null_count
            else:
                self._add_values(chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode())

    def figures(self, feeds: str) -> ColumnFigures:
        """Return the figures of all that was added."""
        lowest, highest = self._range or (None, None)
        distinct = None if self._distinct is None else self._distinct.count()
        if (bags := self._bags) is None:
            return ColumnFigures(self._name, self._kind, self._missing, lowest, highest, distinct, feeds)
        kind = f"list of {self._kind}"
        return ColumnFigures(self._name, kind, self._missing, lowest, highest, distinct, feeds, bags.mean, bags.most)

    def _add_values(self, coded: Any) -> None:
        """Take a dictionary array: each different value is looked at once."""
        values, is_text = coded.dictionary, _is_text(coded.dictionary.type)
        texts = values.cast(pa.binary() if is_text else pa.string()).cast(pa.binary())
        present = pc.greater(pc.binary_length(texts), 0)
        absent = np.append(~present.to_numpy(zero_copy_only=False), True)
        self._missing += int(absent[coded.indices.fill_null(len(values)).to_numpy(zero_copy_only=False)].sum())
        if self._distinct is not None:
            self._distinct.add(Cells.of_arrow(texts.filter(present)).hashes())
        if is_text or pa.types.is_integer(values.type):
            self.spellings.add(texts.filter(present))
        if is_text:
            self._add_texts(texts.filter(present))
        else:
            self._kind = str(values.type)
            if _is_numeric(values.type):
                self._widen(values)

    def _add_texts(self, texts: Any) -> None:
        if self._kind == "text" or not len(texts):
            return
        kind = next((kind for kind, to in _NUMERIC_TEXTS if _can_be(texts, to)), "text")
        self._kind = max(self._kind, kind, key=_KINDS.index)
        if self._kind == "text":
            self._range = None
        else:
            self._widen(texts)

    def _widen(self, values: Any) -> None:
        bounds = pc.min_max(values.cast(pa.float64(), safe=False))
        if (low := bounds["min"].as_py()) is not None:
            known = self._range or (low, low)
            self._range = (min(known[0], low), max(known[1], bounds["max"].as_py()))


def _can_be(texts: Any, kind: Any) -> bool:
    try:
        texts.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def _is_bag(kind: Any) -> bool:
    types = pa.types
    lists = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    return any(is_list(kind) for is_list in lists) and not types.is_nested(kind.value_type)


def _is_text(kind: Any) -> bool:
    types = pa.types
    tests = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return any(test(kind) for test in tests)


def _is_numeric(kind: Any) -> bool:
    types = pa.types
    return any(test(kind) for test in (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal))
