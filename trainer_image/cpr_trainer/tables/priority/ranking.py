"""The k largest of many scores in two passes over chunks: no copy of all scores is made, and none is sorted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from cpr_trainer.arrays import Floats, Ints
from cpr_trainer.tables.priority.population import Population

#: A float32 >= 0 without these lowest bits: exponent and 8 bits of the fraction, in the order of the floats.
_SHIFT = 15
_BUCKETS = 1 << 16
_NO_SIGN = np.uint32(0x7FFFFFFF)


def largest(population: Population, score: Callable[[slice], Floats], count: int, rng: np.random.Generator) -> Ints:
    """Return the slots of the `count` largest scores among rows of large tables, int64, ascending.

    score: chunk of slots -> float32 >= 0 [chunk], called twice for each. Rows that score 0 are never taken, those that
    are no number are taken first. Scores that differ by less than 1 part in 256 may count as equal, and of equal ones
    random ones are taken. Scores may change between the two passes: never more than `count` are taken.
    """
    histogram = np.zeros(_BUCKETS, np.int64)
    for chunk in population.chunks():
        histogram += np.bincount(_buckets(population, score(chunk), chunk), minlength=_BUCKETS)
    edge = _edge(histogram, count)
    tied = int(histogram[edge])
    room = count - int(histogram[edge + 1 :].sum())
    found: list[Ints] = []
    for chunk in population.chunks():
        buckets = _buckets(population, score(chunk), chunk)
        taken = buckets > edge
        if edge:
            here = np.flatnonzero(buckets == edge)
            tied = max(tied, len(here))
            share = rng.hypergeometric(len(here), tied - len(here), min(room, tied))
            taken[rng.choice(here, share, replace=False)] = True
            tied, room = tied - len(here), room - share
        found.append(np.flatnonzero(taken) + chunk.start)
    return np.concatenate(found)[:count]


def _buckets(population: Population, scores: Floats, chunk: slice) -> NDArray[np.uint32]:
    """Return the bucket of each score, uint32 [chunk]: 0 for rows of small tables and for scores of 0."""
    buckets = (scores.view(np.uint32) & _NO_SIGN) >> np.uint32(_SHIFT)
    # A score too small for the first bucket is larger than none.
    buckets[(buckets == 0) & (scores > 0)] = 1
    buckets[population.small_in(chunk)] = 0
    return buckets


def _edge(histogram: Ints, count: int) -> int:
    """Return the bucket of which only a part is taken; 0 if all scores above 0 are."""
    above = np.cumsum(histogram[:0:-1])[::-1]  # above[b - 1]: scores in bucket b and higher
    # `above` falls: the last bucket with more than `count` scores from it upwards.
    return int(np.flatnonzero(above > count)[-1]) + 1 if above[0] > count else 0
