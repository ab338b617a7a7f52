"""Columns with any number of values a sample: lists in Parquet, cells with a separator in text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cpr_trainer.arrays import Ints

_TEXTS = frozenset((pa.string(), pa.large_string(), pa.binary(), pa.large_binary()))


@dataclass(frozen=True, slots=True, eq=False)
class Present:
    """Which ids of a column of bags are there. sizes: int64 [n], of each bag with its absent ids. kept: bool, by id."""

    sizes: Ints
    kept: NDArray[np.bool_]


def split(column: Any, separator: str | None) -> tuple[Any, Ints, Present]:
    """Return all ids of a column of bags, as a pyarrow chunked array, the length of each bag, int64 [n], and which.

    The column holds lists, or texts with `separator` between the ids. Absent ids are left out: nulls and empty texts.
    """
    ids, lengths, sizes, kept = [], [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0, np.bool_)]
    for chunk in column.chunks:
        every, of_bags = flat(chunk, separator)
        present = _present(every)
        before = np.concatenate(([0], np.cumsum(present, dtype=np.int64)))
        ends = np.cumsum(of_bags)
        lengths.append(before[ends] - before[ends - of_bags])
        ids.append(every.filter(pa.array(present)))
        sizes.append(of_bags)
        kept.append(present)
    there = Present(np.concatenate(sizes), np.concatenate(kept))
    return pa.chunked_array(ids or [pa.array([], pa.binary())]), np.concatenate(lengths), there


def flat(chunk: Any, separator: str | None) -> tuple[Any, Ints]:
    """Return all values of an array of lists, or of texts with a `separator`, and the length of each, int64 [n]."""
    lists = chunk if separator is None else _split_texts(chunk, separator)
    sizes = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return lists.flatten(), sizes


def _split_texts(texts: Any, separator: str) -> Any:
    """Return an array of texts as an array of lists: every different text is split once."""
    coded = texts if pa.types.is_dictionary(texts.type) else texts.dictionary_encode()
    lists = pc.split_pattern(coded.dictionary, pattern=separator)
    return lists.take(coded.indices)


def _present(cells: Any) -> Any:
    """Return which cells are neither null nor the empty text, bool [n]."""
    if pa.types.is_dictionary(cells.type):
        cells = cells.dictionary_decode()
    is_text = cells.type in _TEXTS
    present = pc.greater(pc.binary_length(cells).fill_null(0), 0) if is_text else cells.is_valid()
    return present.to_numpy(zero_copy_only=False)
