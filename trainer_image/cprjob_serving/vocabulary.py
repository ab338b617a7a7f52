"""The values of a table that has a row for each: found by their hashes, and told apart byte by byte."""

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
        """Take the lines of a text, of which each ends in a line feed. Raises ValueError, which names a line, from 1.

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
        found._refuse_twice()
        return found

    def __len__(self) -> int:
        return len(self.order)

    @property
    def text(self) -> bytes:
        """The lines again."""
        return self.values.data[:-WORD_BYTES].tobytes()

    def digest_of_first(self, count: int) -> str:
        """Return the SHA-256, in hex, of the text of the first `count` values, at most n."""
        end = int(self.values.starts[count - 1] + self.values.lengths[count - 1]) + 1 if count else 0
        return hashlib.sha256(self.values.data[:end].data).hexdigest()

    def rows(self, cells: Cells) -> Ints:
        """Return the row of each text, int64 [k]: -1 where it is no value."""
        wanted = cells.hashes()
        found = np.full(len(wanted), _NO_ROW, np.int64)
        # In the order of the hashes, a large array is walked through, and not jumped about in.
        left = np.argsort(wanted)
        places = np.empty(len(wanted), np.int64)
        places[left] = np.searchsorted(self.hashes, wanted[left])
        while len(left := left[self._alike(places[left], wanted[left])]):
            values = self.order[places[left]]
            same = _same(cells, left, self.values, values)
            found[left[same]] = values[same] + 1
            left = left[~same]
            places[left] += 1  # Another value may have the same hash.
        return found

    def _alike(self, places: Ints, wanted: U64) -> NDArray[np.bool_]:
        """Return where the hash in a place is the one that is wanted, bool [k]."""
        inside = places < len(self)
        inside[inside] = self.hashes[places[inside]] == wanted[inside]
        return inside

    def _refuse_twice(self) -> None:
        """Raise ValueError if a value stands twice."""
        alike = np.flatnonzero(self.hashes[1:] == self.hashes[:-1]) + 1
        before = alike - 1
        while len(alike):
            same = _same(self.values, self.order[alike], self.values, self.order[before])
            if same.any():
                first, second = sorted((int(self.order[before[same]][0]), int(self.order[alike[same]][0])))
                start = self.values.starts[first]
                value = self.values.data[start : start + self.values.lengths[first]].tobytes()
                raise ValueError(f"lines {first + 1} and {second + 1} are both {value.decode(errors='replace')!r}")
            before = before - 1
            inside = before >= 0
            inside[inside] = self.hashes[before[inside]] == self.hashes[alike[inside]]
            alike, before = alike[inside], before[inside]


def _same(one: Cells, here: Ints, other: Cells, there: Ints) -> NDArray[np.bool_]:
    """Return whether cell here[j] of `one` is cell there[j] of `other`, bool [k]."""
    lengths = one.lengths[here]
    same: NDArray[np.bool_] = lengths == other.lengths[there]
    left, turn = np.flatnonzero(same), 0
    while len(left):
        rest = lengths[left] - turn * WORD_BYTES
        at, beside = (cells.starts[places[left]] + turn * WORD_BYTES for cells, places in ((one, here), (other, there)))
        equal = one.words(at, rest) == other.words(beside, rest)
        same[left[~equal]] = False
        turn += 1
        left = left[equal & (rest > WORD_BYTES)]
    return same
