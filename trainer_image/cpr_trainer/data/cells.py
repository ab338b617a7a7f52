"""One column of a block of lines as raw bytes, and its conversion to numbers without a loop over rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpr_trainer.hashing import U64, WORD_BYTES, hash_strings

_ZERO = ord("0")
_MINUS = ord("-")
#: Any number of so many characters fits into an int64.
_LONGEST_INTEGER = 18


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """n byte strings: cell i is `data[starts[i] : starts[i] + lengths[i]]`.

    data: uint8, with a word of padding at the end. starts, lengths: int64 [n].
    """

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @classmethod
    def of_arrow(cls, column: Any) -> Cells:
        """Take the cells of a pyarrow string or binary array without nulls."""
        _, offsets_buffer, data_buffer = column.buffers()
        stored = np.frombuffer(offsets_buffer, np.int32)[column.offset : column.offset + len(column) + 1]
        offsets = stored.astype(np.int64)
        used = np.frombuffer(data_buffer, np.uint8)[: offsets[-1]] if data_buffer else np.zeros(0, np.uint8)
        return cls(np.concatenate((used, np.zeros(WORD_BYTES, np.uint8))), offsets[:-1], np.diff(offsets))

    def text(self, row: int) -> str:
        """Return a cell for a message, cut to 40 bytes."""
        start = int(self.starts[row])
        cell = self.data[start : start + min(int(self.lengths[row]), 40)].tobytes()
        return cell.decode("utf-8", "backslashreplace")

    def hashes(self) -> U64:
        """Return each cell's 64-bit hash, uint64 [n]; the empty string is a value like another."""
        return hash_strings(self.data, self.starts, self.lengths)

    def flags(self) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """Return (values, valid), each [n], of cells that must be 0 or 1; the value of an invalid cell is 0."""
        digits = self.data[self.starts] - np.uint8(_ZERO)  # An empty cell reads its neighbour; its length tells.
        valid = (self.lengths == 1) & (digits <= 1)
        return np.where(valid, digits, np.uint8(0)), valid

    def integers(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return (values, valid), each [n], of cells that must be empty (value 0) or a decimal integer.

        An integer is an optional minus and digits, 18 characters at most; the value of an invalid cell is 0.
        """
        negative = (self.lengths > 0) & (self.data[self.starts] == _MINUS)
        starts = self.starts + negative
        lengths = self.lengths - negative
        valid = (self.lengths <= _LONGEST_INTEGER) & ((lengths > 0) | (self.lengths == 0))
        values = np.zeros(len(lengths), np.int64)
        # One turn for each place of the longest number, whatever the number of rows.
        for place in range(int(lengths[valid].max(initial=0))):
            inside = valid & (place < lengths)
            digits = self.data[np.where(inside, starts + place, 0)] - np.uint8(_ZERO)
            valid &= ~inside | (digits <= 9)  # noqa: PLR2004
            values = np.where(inside, values * 10 + digits, values)
        return np.where(valid, np.where(negative, -values, values), 0), valid
