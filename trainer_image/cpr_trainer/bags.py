"""Bags: samples with any number of ids for a table, including none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from cpr_trainer.arrays import Ints

Int32s = NDArray[np.int32]

_INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, eq=False)
class Bags:
    """The ids of n samples for T tables: bag after bag, sample by sample, and in a sample table by table.

    ids: int32 [k], each in [0, rows of its table). offsets: int32 [n T + 1]; bag b has the ids from offsets[b] to
    offsets[b + 1]. means: bool [T], which tables give the mean of a bag's vectors; the others give the sum. Raises
    ValueError if there are more than 2**31 - 1 ids.
    """

    ids: Int32s
    offsets: Int32s
    means: NDArray[np.bool_]

    @classmethod
    def of_columns(cls, columns: Sequence[tuple[Int32s, Ints]], means: NDArray[np.bool_]) -> Self:
        """Return bags from T columns, each the ids of its bags one after the other, and their lengths, int64 [n]."""
        lengths = np.stack([each for _, each in columns], axis=1)
        offsets = _offsets(lengths.ravel())
        ids = np.empty(offsets[-1], np.int32)
        for place, (column_ids, column_lengths) in enumerate(columns):
            ids[_runs(offsets[place : -1 : len(columns)], column_lengths)] = column_ids
        return cls(ids, offsets, means)

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Return the samples of several bags, one at least, one after the other."""
        ids = np.concatenate([part.ids for part in parts])
        return cls(ids, _offsets(np.concatenate([np.diff(part.offsets) for part in parts])), parts[0].means)

    def __len__(self) -> int:
        return (len(self.offsets) - 1) // len(self.means)

    @property
    def lengths(self) -> Ints:
        """How many ids each bag has, int64 [n, T]."""
        return np.diff(self.offsets).astype(np.int64).reshape(len(self), len(self.means))

    def take(self, samples: Ints) -> Self:
        """Return the samples at these places, int64 [m], in that order; repeats are allowed."""
        tables = len(self.means)
        first, stop = self.offsets[samples * tables], self.offsets[(samples + 1) * tables]
        bags = (samples[:, np.newaxis] * tables + np.arange(tables)).ravel()
        offsets = _offsets(self.offsets[bags + 1] - self.offsets[bags])
        return type(self)(self.ids[_runs(first, (stop - first).astype(np.int64))], offsets, self.means)

    def of_tables(self, tables: Ints) -> Self:
        """Return the bags of these tables, int64 [t], in that order."""
        bags = (np.arange(len(self))[:, np.newaxis] * len(self.means) + tables).ravel()
        lengths = (self.offsets[bags + 1] - self.offsets[bags]).astype(np.int64)
        return type(self)(self.ids[_runs(self.offsets[bags], lengths)], _offsets(lengths), self.means[tables])

    def spread(self, count: int, places: Ints) -> Self:
        """Return `count` samples: these at `places`, int64 [n] ascending, and empty ones elsewhere."""
        lengths = np.zeros((count, len(self.means)), np.int64)
        lengths[places] = self.lengths
        return type(self)(self.ids, _offsets(lengths.ravel()), self.means)


def _offsets(lengths: NDArray[np.integer]) -> Int32s:
    ends = np.cumsum(lengths, dtype=np.int64)
    if len(ends) and ends[-1] > _INT32_MAX:
        raise ValueError(f"{ends[-1]} ids are too many at once")
    return np.concatenate((np.zeros(1, np.int32), ends.astype(np.int32)))


def _runs(starts: Int32s, lengths: Ints) -> Ints:
    """Return the places of runs, one after the other: starts[0], starts[0] + 1, ..., starts[1], ...; int64."""
    ends = np.cumsum(lengths)
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(ends[-1] if len(ends) else 0)
