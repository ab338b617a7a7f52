"""Texts as raw bytes, for a hash of each without a loop over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cprjob_serving.arrays import Ints
from cprjob_serving.cpr64 import LOW_BYTES, U64, WORD_BYTES, hash_strings


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """n byte strings: cell i is `data[starts[i] : starts[i] + lengths[i]]`.

    data: uint8, with a word of padding at the end. starts, lengths: int64 [n].
    """

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @classmethod
    def of(cls, texts: Sequence[bytes]) -> Cells:
        """Take some texts."""
        lengths = np.array([len(text) for text in texts], np.int64)
        data = np.frombuffer(b"".join(texts) + bytes(WORD_BYTES), np.uint8)
        return cls(data, np.cumsum(lengths) - lengths, lengths)

    @classmethod
    def of_arrow(cls, column: Any) -> Cells:
        """Take the cells of a pyarrow string or binary array without nulls."""
        _, offsets_buffer, data_buffer = column.buffers()
        stored = np.frombuffer(offsets_buffer, np.int32)[column.offset : column.offset + len(column) + 1]
        offsets = stored.astype(np.int64)
        used = np.frombuffer(data_buffer, np.uint8)[: offsets[-1]] if data_buffer else np.zeros(0, np.uint8)
        return cls(np.concatenate((used, np.zeros(WORD_BYTES, np.uint8))), offsets[:-1], np.diff(offsets))

    def hashes(self) -> U64:
        """Return each cell's CPR64, uint64 [n]; the empty string is a value like another."""
        return hash_strings(self.data, self.starts, self.lengths)

    def words(self, places: Ints, left: Ints) -> U64:
        """Return the 8 bytes from each place of `data` as a little-endian word, uint64 [k].

        places, left: int64 [k]. Only `left` bytes are taken, none if it is below 1; the others are 0.
        """
        # A view with a word at every byte: unaligned on purpose.
        everywhere = np.ndarray((len(self.data) - WORD_BYTES + 1,), "<u8", self.data, strides=(1,))
        return everywhere[np.where(left > 0, places, 0)] & LOW_BYTES[np.clip(left, 0, WORD_BYTES)]


def rotated(words: U64, bits: int) -> U64:
    """Return each word with its bits rotated to the left, uint64 [n]. bits: in (0, 64)."""
    return (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))
