"""Canonical digits of ids that are whole numbers, and detection of columns that spell a number in two ways."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cpr_trainer.data.schema import Input, as_texts
from cprjob_serving.hashes import Cells
from cprjob_serving.transform import LARGEST_WHOLE, WHOLE_NUMBER

SPELLINGS_REMEDY = "Name the column in data.columns.integers, or write the files in one way."
_WHOLE = f"^{WHOLE_NUMBER}$"
_ABSENT = "^[ \\t]*$"
_PLAIN = "^-?(0|[1-9][0-9]*)$"
#: Not 007 or +7, which may be names.
_ANY_SPELLING = r"^[ \t]*(-?(?:0|[1-9][0-9]*))(?:\.0*)?[ \t]*$"
_SAMPLE = 4096
_IN_PLAIN, _OTHERWISE = 1, 2


def canonical(values: Any) -> tuple[Any, NDArray[np.bool_]]:
    """Return the decimal digits of an array of texts or numbers, binary [k], and a mask of those that are not whole.

    A null, NaN and a text of spaces are absent and become the empty text. Values that are not whole become it, too.
    """
    nothing = pa.scalar(b"", pa.binary())
    if pa.types.is_floating(values.type):
        doubles = values.cast(pa.float64()).fill_null(np.nan).to_numpy(zero_copy_only=False)
        bounded = np.where(np.abs(doubles) <= LARGEST_WHOLE, doubles, 0.5)
        whole = bounded == np.floor(bounded)
        digits = pa.array(np.where(whole, bounded, 0).astype(np.int64)).cast(pa.string()).cast(pa.binary())
        return pc.if_else(pa.array(whole), digits, nothing), ~whole & ~np.isnan(doubles)
    texts = values.cast(pa.string()).cast(pa.binary()) if pa.types.is_decimal(values.type) else as_texts(values)
    texts = texts.fill_null(b"")
    is_whole = pc.match_substring_regex(texts, _WHOLE)
    digits = pc.replace_substring_regex(pc.replace_substring_regex(texts, _WHOLE, r"\1\2"), "^-0$", "0")
    wrong = pc.invert(pc.or_(is_whole, pc.match_substring_regex(texts, _ABSENT)))
    return pc.if_else(is_whole, digits, nothing), wrong.to_numpy(zero_copy_only=False)


def as_canonical(column: Any) -> Any:
    """Return a chunked array of ids with the digits of whole numbers in place of its cells; all others are absent."""
    chunks = []
    for chunk in column.chunks:
        coded = chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
        chunks.append(pa.DictionaryArray.from_arrays(coded.indices.cast(pa.int32()), canonical(coded.dictionary)[0]))
    return pa.chunked_array(chunks, pa.dictionary(pa.int32(), pa.binary()))


class Spellings:
    """Finds whole numbers that a column spells in two ways, as 12 and 12.0.

    It has the numbers with the 4096 smallest hashes, and the spellings of each, so a number of the sample is found in
    any blocks of its spellings.
    """

    def __init__(self) -> None:
        self.only_whole = True
        self._hashes = np.empty(0, np.uint64)
        self._found = np.empty(0, np.uint8)
        self._examples: dict[int, bytes] = {}

    def add(self, texts: Any) -> None:
        """Add different values of a block, a pyarrow array of bytes without nulls and empty texts."""
        whole = pc.match_substring_regex(texts, _ANY_SPELLING)
        self.only_whole &= pc.all(whole).as_py() is not False
        written = texts.filter(whole).cast(pa.binary())
        plain = pc.match_substring_regex(written, _PLAIN).to_numpy(zero_copy_only=False)
        hashes = Cells.of_arrow(pc.replace_substring_regex(written, _ANY_SPELLING, r"\1")).hashes()
        for place in np.flatnonzero(~plain)[: _SAMPLE - len(self._examples)].tolist():
            self._examples.setdefault(int(hashes[place]), written[place].as_py())
        found = np.where(plain, _IN_PLAIN, _OTHERWISE).astype(np.uint8)
        self._hashes, places = np.unique(np.concatenate((self._hashes, hashes)), return_inverse=True)
        merged = np.zeros(len(self._hashes), np.uint8)
        np.bitwise_or.at(merged, places, np.concatenate((self._found, found)))
        self._hashes, self._found = self._hashes[:_SAMPLE], merged[:_SAMPLE]

    def warning(self, column: str) -> str | None:
        """Return a warning with the share of the column that is spelled in two ways, and an example; None for none."""
        both = self._hashes[self._found == _IN_PLAIN | _OTHERWISE]
        if not len(both):
            return None
        example = next((self._examples[each] for each in both.tolist() if each in self._examples), b"12.0").decode()
        digits = example.strip().partition(".")[0]
        share = f"{len(both):,} of {len(self._hashes):,} numbers in two ways"
        return f"Column {column} writes {share}, as '{digits}' and '{example}', which are different ids."


def spelling_matters(used: Input) -> bool:
    """Return True if two spellings of an id would be two ids; elsewhere other spellings are bad rows."""
    return not used.integers and used.table.ids != "RowNumber"
