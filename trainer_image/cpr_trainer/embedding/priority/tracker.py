"""The base of priority strategies: track rows of large tables, rank them for a save, reset them once saved.

The steps of a save are choose -> mark -> wrote, block by block -> forget. A failed save is dropped before `forget`, so
the next one has its rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpr_trainer.arrays import Floats, Ints, Values
from cpr_trainer.embedding.placement import Placement

#: The large tables hold at least this portion of all rows.
_LARGE_PORTION = 0.99
_CHUNK = 1 << 18


@dataclass(frozen=True, slots=True, eq=False)
class Population:
    """The rows of one shard. small: int64 [s], ascending: the slots of rows of small tables, which are always saved."""

    rows: int
    small: Ints

    def quota(self, fraction: float) -> int:
        """Return the number of rows of large tables in a priority save: the portion `fraction`, at least 1."""
        return max(1, int(fraction * (self.rows - len(self.small))))

    def chunks(self) -> Iterator[slice]:
        """Yield all slots as consecutive slices, small enough for a cache."""
        for first in range(0, self.rows, _CHUNK):
            yield slice(first, min(first + _CHUNK, self.rows))

    def small_in(self, chunk: slice) -> Ints:
        """Return the places, within a chunk of slots, of its rows of small tables."""
        first, last = np.searchsorted(self.small, (chunk.start, chunk.stop))
        places: Ints = self.small[first:last] - chunk.start
        return places


def large_tables(rows_per_table: Sequence[int]) -> tuple[bool, ...]:
    """Return whether each table is large: the fewest tables with at least 99 % of all rows are.

    CPR names the 7 largest of Criteo's 26 tables. No bound on one number gives 7 for both of its data sets: this one
    gives 7 for Terabyte at 10 M rows a table (99.1 %), and 6 for Kaggle (99.2 %), where the 7th holds 0.4 %.
    """
    order = sorted(range(len(rows_per_table)), key=lambda table: -rows_per_table[table])
    missing = _LARGE_PORTION * sum(rows_per_table)
    large = [False] * len(rows_per_table)
    for table in order:
        if missing <= 0:
            break
        large[table] = True
        missing -= rows_per_table[table]
    return tuple(large)


def population_of(placement: Placement, shard: int) -> Population:
    """Return the population of a shard."""
    sizes, found = placement.rows_per_table, [np.empty(0, np.int64)]
    for rows, offset, large in zip(sizes, placement.offsets, large_tables(sizes), strict=True):
        for first in range(0, 0 if large else rows, _CHUNK):
            shards, slots = placement.locate(np.arange(first, min(first + _CHUNK, rows)) + offset)
            found.append(slots[shards == shard])
    return Population(placement.size(shard), np.sort(np.concatenate(found)))


#: A float32 >= 0 without these lowest bits: exponent and 8 bits of the fraction, in the order of the floats.
_SHIFT = 15
_BUCKETS = 1 << 16
_NO_SIGN = np.uint32(0x7FFFFFFF)


def largest(population: Population, score: Callable[[slice], Floats], count: int, rng: np.random.Generator) -> Ints:
    """Return the slots of the `count` largest scores among rows of large tables, int64, ascending.

    score: chunk of slots -> float32 >= 0 [chunk], called twice for each chunk: scores are neither stored nor sorted.
    Rows that score 0 are never taken, and NaN first. Scores that differ by less than 1 part in 256 may count as equal,
    and of equal ones random ones are taken. Scores may change between the passes: never more than `count` are taken.
    """
    histogram = np.zeros(_BUCKETS, np.int64)
    for chunk in population.chunks():
        histogram += np.bincount(_buckets(population, score(chunk), chunk), minlength=_BUCKETS)
    above = np.cumsum(histogram[:0:-1])[::-1]  # above[b - 1]: scores in bucket b and higher
    # `above` falls: the edge, taken in part, is the last bucket with more than `count` scores from it upwards. It is 0
    # if all scores above 0 are taken.
    edge = int(np.flatnonzero(above > count)[-1]) + 1 if above[0] > count else 0
    tied = int(histogram[edge])
    left = count - int(histogram[edge + 1 :].sum())
    found: list[Ints] = []
    for chunk in population.chunks():
        buckets = _buckets(population, score(chunk), chunk)
        taken = buckets > edge
        if edge:
            here = np.flatnonzero(buckets == edge)
            tied = max(tied, len(here))
            share = rng.hypergeometric(len(here), tied - len(here), min(left, tied))
            taken[rng.choice(here, share, replace=False)] = True
            tied, left = tied - len(here), left - share
        found.append(np.flatnonzero(taken) + chunk.start)
    return np.concatenate(found)[:count]


def _buckets(population: Population, scores: Floats, chunk: slice) -> NDArray[np.uint32]:
    """Return the bucket of each score, uint32 [chunk]: 0 for rows of small tables and for scores of 0."""
    buckets = (scores.view(np.uint32) & _NO_SIGN) >> np.uint32(_SHIFT)
    # A score too small for the first bucket is larger than none.
    buckets[(buckets == 0) & (scores > 0)] = 1
    buckets[population.small_in(chunk)] = 0
    return buckets


@dataclass(slots=True, eq=False)
class Claim:
    """The rows of one save. slots: int64 [k], ascending; None for all rows, as of an anchor.

    added_updates: row updates in this save and in no committed one, set by the mark; None if the strategy does not
    count them. token: private to the tracker.
    """

    slots: Ints | None
    added_updates: int | None = None
    token: NDArray[Any] | None = None


class Tracker(ABC):
    """The importance of a shard's rows since they were last saved.

    `choose` and `wrote` may run on another thread than the other methods, concurrently with `note`: `choose` reads
    counters while they change, so its ranking is of some moment in between. The next `choose` starts after `forget`.
    """

    def __init__(self, population: Population, rng: np.random.Generator) -> None:
        self._population = population
        self._rng = rng
        self._marked: Claim | None = None

    @property
    @abstractmethod
    def memory_bytes(self) -> int:
        """The memory that is used permanently; the temporary memory of a save is not included."""

    def note(self, slots: Ints) -> None:  # noqa: B027 -- only strategies that count override it
        """Note one push, right after it was applied. slots: int64 [k], all different."""

    @abstractmethod
    def choose(self, count: int) -> Claim:
        """Claim all rows of small tables and the `count` most important others, fewer if fewer changed."""

    def mark(self, claim: Claim) -> None:
        """Note that the content of the claimed rows is fixed now: no save has later pushes."""
        self._marked = claim
        self._mark(claim)

    def wrote(self, slots: Ints, rows: Values, state: Floats) -> None:  # noqa: B027 -- as above
        """Note the content, as of the mark, of claimed rows of one segment that were written.

        slots: int64 [k]. rows: [k, D]. state: float32 [k, W] of their optimizers.
        """

    def forget(self, claim: Claim) -> None:
        """Note that a marked claim is committed. Raises ValueError unless it is the one marked last, and only once."""
        if claim is not self._marked:
            raise ValueError("only the claim that was marked last can be forgotten, and once")
        self._marked = None
        self._forget(claim)

    def reset(self) -> None:
        """Count all rows as saved now."""
        self._marked = None
        self._reset()

    def _claim(self, chosen: Ints) -> Claim:
        """Return the claim of some rows of large tables (int64 [k]) and of all rows of small ones."""
        return Claim(np.union1d(chosen, self._population.small))

    def _mark(self, claim: Claim) -> None:  # noqa: B027 -- as above
        """Handle a mark in the strategy."""

    @abstractmethod
    def _forget(self, claim: Claim) -> None: ...

    @abstractmethod
    def _reset(self) -> None: ...
