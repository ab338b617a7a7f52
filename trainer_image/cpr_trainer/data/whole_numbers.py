"""Ids that are whole numbers, and columns that write one number in several ways."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cpr_trainer.data.arrow_types import as_texts
from cprjob_serving.hashes import Cells
from cprjob_serving.transform import LARGEST_WHOLE, WHOLE_NUMBER

_WHOLE = f"^{WHOLE_NUMBER}$"
_ABSENT = "^[ \\t]*$"
_PLAIN = "^-?(0|[1-9][0-9]*)$"
#: Not 007 or +7, which may be names.
_ANY_WAY = r"^[ \t]*(-?(?:0|[1-9][0-9]*))(?:\.0*)?[ \t]*$"
_SAMPLE = 4096
_IN_PLAIN, _OTHERWISE = 1, 2


def canonical(values: Any) -> tuple[Any, NDArray[np.bool_]]:
    """Return an array of texts or numbers as the decimal digits of whole numbers, binary [k], and which are none.

    A null, NaN and a text of spaces become the empty text, because they are absent. So do values that are no whole
    numbers.
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
    """Finds whole numbers that a column writes in two ways, as 12 and 12.0.

    It keeps the numbers with the 4096 smallest hashes, and in which ways each was met, so a number of the sample is
    found in whatever blocks its spellings are.
    """

    def __init__(self) -> None:
        self.only_whole = True
        self._hashes = np.empty(0, np.uint64)
        self._met = np.empty(0, np.uint8)
        self._other: dict[int, bytes] = {}

    def add(self, texts: Any) -> None:
        """Take different values of a block, a pyarrow array of bytes without nulls and empty texts."""
        whole = pc.match_substring_regex(texts, _ANY_WAY)
        self.only_whole &= pc.all(whole).as_py() is not False
        written = texts.filter(whole).cast(pa.binary())
        plain = pc.match_substring_regex(written, _PLAIN).to_numpy(zero_copy_only=False)
        hashes = Cells.of_arrow(pc.replace_substring_regex(written, _ANY_WAY, r"\1")).hashes()
        for place in np.flatnonzero(~plain)[: _SAMPLE - len(self._other)].tolist():
            self._other.setdefault(int(hashes[place]), written[place].as_py())
        met = np.where(plain, _IN_PLAIN, _OTHERWISE).astype(np.uint8)
        self._hashes, places = np.unique(np.concatenate((self._hashes, hashes)), return_inverse=True)
        ways = np.zeros(len(self._hashes), np.uint8)
        np.bitwise_or.at(ways, places, np.concatenate((self._met, met)))
        self._hashes, self._met = self._hashes[:_SAMPLE], ways[:_SAMPLE]

    def twice(self) -> str | None:
        """Return how many numbers of the sample are written in two ways, with one of them; None if none is."""
        both = self._hashes[self._met == _IN_PLAIN | _OTHERWISE]
        if not len(both):
            return None
        example = next((self._other[each] for each in both.tolist() if each in self._other), b"12.0").decode()
        return f"{len(both):,} of {len(self._hashes):,} numbers in two ways, as '{_digits(example)}' and '{example}'"


def _digits(written: str) -> str:
    return written.strip().partition(".")[0]
