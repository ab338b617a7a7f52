"""The values of a table that has a row for each: found by their hashes, and compared byte by byte."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from cprjob_serving.hashes import U64, WORD_BYTES, Cells, Ints

_NO_ROW = -1
_NEWLINE = 10


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """n different texts, none of them empty: value i, from 0, has row i + 1, and row 0 is for all others.

    order: int64 [n], the values by their hashes, CPR64, uint64 [n] ascending. digest: the SHA-256, in hex, of the text.
    """

    values: Cells
    hashes: U64
    order: Ints
    digest: str

    @classmethod
    def of(cls, text: bytes) -> Self:
        """Return the vocabulary of a text's lines; each ends in a line feed. Raises ValueError with a line, from 1.

        A line must not be empty, and not the same as another one.
        """
        data = np.frombuffer(text + bytes(WORD_BYTES), np.uint8)
        ends = np.flatnonzero(data[: len(text)] == _NEWLINE).astype(np.int64)
        starts = np.concatenate((np.zeros(min(len(ends), 1), np.int64), ends[:-1] + 1))
        values = Cells(data, starts, ends - starts)
        if not values.lengths.all():
            raise ValueError(f"line {int(values.lengths.argmin()) + 1} is empty")
        hashes = values.hashes()
        order = np.argsort(hashes, kind="stable")
        found = cls(values, hashes[order], order, hashlib.sha256(text).hexdigest())
        found._check_unique()
        return found

    def __len__(self) -> int:
        return len(self.order)

    @property
    def text(self) -> bytes:
        """The lines of all values."""
        return self.values.data[:-WORD_BYTES].tobytes()

    def digest_of_first(self, count: int) -> str:
        """Return the SHA-256, in hex, of the text of the first `count` values, at most n."""
        end = int(self.values.starts[count - 1] + self.values.lengths[count - 1]) + 1 if count else 0
        return hashlib.sha256(self.values.data[:end].data).hexdigest()

    def rows(self, cells: Cells) -> Ints:
        """Return the row of each text, int64 [k]: -1 if it is not a value."""
        hashes = cells.hashes()
        found = np.full(len(hashes), _NO_ROW, np.int64)
        # In the order of the hashes, a large array is read sequentially.
        left = np.argsort(hashes)
        places = np.empty(len(hashes), np.int64)
        places[left] = np.searchsorted(self.hashes, hashes[left])
        while len(left := left[self._equal_hashes(places[left], hashes[left])]):
            values = self.order[places[left]]
            same = _same(cells, left, self.values, values)
            found[left[same]] = values[same] + 1
            left = left[~same]
            places[left] += 1  # Another value may have the same hash.
        return found

    def _equal_hashes(self, places: Ints, hashes: U64) -> NDArray[np.bool_]:
        """Return a mask of places with the given hashes, bool [k]."""
        inside = places < len(self)
        inside[inside] = self.hashes[places[inside]] == hashes[inside]
        return inside

    def _check_unique(self) -> None:
        """Raise ValueError if a value is there twice."""
        after = np.flatnonzero(self.hashes[1:] == self.hashes[:-1]) + 1
        before = after - 1
        while len(after):
            same = _same(self.values, self.order[after], self.values, self.order[before])
            if same.any():
                first, second = sorted((int(self.order[before[same]][0]), int(self.order[after[same]][0])))
                start = self.values.starts[first]
                value = self.values.data[start : start + self.values.lengths[first]].tobytes()
                raise ValueError(f"lines {first + 1} and {second + 1} are both {value.decode(errors='replace')!r}")
            before = before - 1
            inside = before >= 0
            inside[inside] = self.hashes[before[inside]] == self.hashes[after[inside]]
            after, before = after[inside], before[inside]


def _same(one: Cells, here: Ints, other: Cells, there: Ints) -> NDArray[np.bool_]:
    """Return a mask of the j with equal cells here[j] of `one` and there[j] of `other`, bool [k]."""
    lengths = one.lengths[here]
    same: NDArray[np.bool_] = lengths == other.lengths[there]
    left, offset = np.flatnonzero(same), 0
    while len(left):
        remaining = lengths[left] - offset
        at, other_at = (cells.starts[places[left]] + offset for cells, places in ((one, here), (other, there)))
        equal = one.words(at, remaining) == other.words(other_at, remaining)
        same[left[~equal]] = False
        offset += WORD_BYTES
        left = left[equal & (remaining > WORD_BYTES)]
    return same
