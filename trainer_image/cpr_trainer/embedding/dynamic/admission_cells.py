"""Admission: keys that have no slot yet are counted in cells, apart from the table.

A cell is two columns of 32 bits: the step of the last count; and its mark, which is a fingerprint of 24 bits above a
count of 8. A page has as many cells as slots, in groups of 16. A key's group and its fingerprint are the 32 bits of its
place in the page (`BandKeys.positions`), so ascending keys of a page are in the order of both. A step counts
once, however many trainers push the key. A key without a cell takes an empty one of its group, or else the one that was
counted longest ago, but none that this step counted. Two keys of one fingerprint share a cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from cpr_trainer.arrays import Ints
from cpr_trainer.embedding.dynamic.entries import CELL_COLUMNS, Entries, Rules
from cpr_trainer.embedding.dynamic.pages import U32, first_of_runs
from cprjob_serving.hashes import U64

GROUP_CELLS = 16
_FINGERPRINT_BITS = np.uint64(24)
_FINGERPRINTS = np.uint64(2**24 - 1)
_FINGERPRINT_AT = np.uint32(8)
_MAX_COUNT = np.uint32(255)
#: The keys that are counted together: their cells fit into the processor's cache.
_KEYS_AT_ONCE = 2048
_NO_CELLS = np.empty(0, np.uint32), np.empty(0, np.int64), np.empty(0, np.uint32)
_EMPTY, _PINNED = -1, np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, eq=False)
class Count:
    """The count of keys in a step, before a cell changes.

    counts: uint32 [k], steps with a push of each key, and this one. places: int64 [k], the place of each key in the
    next two, ascending. cells: int64 [g], -1 for a key that no cell counts. marks: uint32 [g], of these cells.
    """

    counts: U32
    places: Ints
    cells: Ints
    marks: U32

    def changes(self, placed: NDArray[np.bool_], step: int) -> tuple[Ints, U32]:
        """Return the cells that change at a step, int64 [c] ascending, and their two columns, uint32 [c, 2].

        placed: bool [k], the keys that have a slot now; their cells are emptied.
        """
        columns = np.stack((np.full_like(self.marks, step), self.marks), axis=1)
        if len(self.cells):
            columns[self.places[placed]] = 0
        changed = np.flatnonzero(self.cells >= 0)
        changed = changed[np.argsort(self.cells[changed])]
        return self.cells[changed], columns[changed]


def count_keys(entries: Entries, positions: U64, rules: Rules, step: int) -> Count:
    """Count keys that have no slot. positions: uint64 [k], of different keys; those of a page together, ascending."""
    different = first_of_runs(positions)
    places, positions = np.cumsum(different) - 1, positions[different]
    # Groups do not depend on each other, so some are counted at a time.
    starts = np.append(np.flatnonzero(first_of_runs(positions >> _FINGERPRINT_BITS)), len(positions))
    edges = [*starts[np.searchsorted(starts, np.arange(0, len(positions), _KEYS_AT_ONCE))].tolist(), len(positions)]
    parts = [_NO_CELLS, *(_count_groups(entries, positions[a:b], rules, step) for a, b in pairwise(edges))]
    counts = np.concatenate([each[0] for each in parts])
    at, marks = np.concatenate([each[1] for each in parts]), np.concatenate([each[2] for each in parts])
    return Count(counts[places], places, at, marks)


def _count_groups(entries: Entries, positions: U64, rules: Rules, step: int) -> tuple[U32, Ints, U32]:
    """Return the counts, cells and marks of `count_keys` for different positions, uint64 [g], in their order."""
    buckets = (positions >> _FINGERPRINT_BITS).astype(np.int64)
    fingerprints = (positions & _FINGERPRINTS).astype(np.uint32)

    first = first_of_runs(buckets)
    rows = np.cumsum(first) - 1
    groups = buckets[first]
    cells = entries.cells.reshape(-1, GROUP_CELLS * CELL_COLUMNS).take(groups, axis=0)
    steps, marks = cells[:, ::CELL_COLUMNS], cells[:, 1::CELL_COLUMNS]
    counts = marks & _MAX_COUNT
    live = steps >= rules.oldest_live(step)
    matches = live[rows] & (marks[rows] >> _FINGERPRINT_AT == fingerprints[:, np.newaxis])
    found, at = matches.any(axis=1), matches.argmax(axis=1)
    new_counts = np.where(found, np.minimum(counts[rows, at], _MAX_COUNT - 1) + np.uint32(1), np.uint32(1))

    ages = np.where(live, steps.astype(np.int64), _EMPTY)
    ages[rows[found], at[found]] = _PINNED
    at[~found] = _oldest(ages, rows[~found])
    new_marks = fingerprints << _FINGERPRINT_AT | new_counts
    return new_counts, np.where(at < 0, -1, buckets * GROUP_CELLS + at), new_marks


def _oldest(ages: Ints, rows: Ints) -> Ints:
    """Return a place in `ages`, int64 [r, 16], for each of `rows`, int64 [n] ascending; -1 if all are pinned.

    The first of several keys with the same row gets the place of the least age, and so on.
    """
    found = np.full(len(rows), -1, np.int64)
    starts = np.flatnonzero(first_of_runs(rows))
    ranks = np.arange(len(rows)) - np.repeat(starts, np.diff(np.append(starts, len(rows))))
    for rank in range(min(int(ranks.max(initial=-1)) + 1, GROUP_CELLS)):
        mine = np.flatnonzero(ranks == rank)
        at = ages[rows[mine]].argmin(axis=1)
        free = ages[rows[mine], at] != _PINNED
        found[mine[free]] = at[free]
        ages[rows[mine], at] = _PINNED
    return found
