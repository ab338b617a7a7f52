"""A dynamic table on one shard: which slot each key has, and the merged steps that change it.

Only an applied step changes anything. `plan` computes a step without a change, so that the arena first keeps the old
contents of what changes, for a save in progress, and writes the redo record. It then stores the columns of the plan,
and the table notes them. A step finds all of its keys and pins them before it inserts the new ones, so that it evicts
no entry that it pushes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from cpr_trainer.arrays import Ints
from cpr_trainer.embedding.dynamic.admission_cells import Count, count_keys
from cpr_trainer.embedding.dynamic.entries import CELL_COLUMNS, MAX_COUNT, Entries, Rules, join_halves
from cpr_trainer.embedding.dynamic.insertion import Buckets, Insertions
from cpr_trainer.embedding.dynamic.pages import BUCKET_SLOTS, U8, U32, Pages, first_of_runs, tags_of
from cprjob_serving.hashes import U64

#: The keys that are found together: their tags fit into the processor's cache.
_KEYS_AT_ONCE = 4096
_EACH_BYTE = np.uint64(0x0101010101010101)
_NO_CONTENTS = np.empty((0, CELL_COLUMNS), np.uint32)


@dataclass(frozen=True, slots=True)
class Changes:
    """The effects of a step on a table on one shard, in keys.

    admitted: got a slot. evicted: lost their slot to an admitted key. expired: had expired before an admitted key took
    their slot. waiting: are not admitted yet. dropped: found only pinned slots, so their gradients are dropped. full:
    met two full buckets, and evicted an entry or were dropped.
    """

    admitted: int = 0
    evicted: int = 0
    expired: int = 0
    waiting: int = 0
    dropped: int = 0
    full: int = 0

    def plus(self, other: Changes) -> Changes:
        """Return the sum of both."""
        return Changes(
            self.admitted + other.admitted,
            self.evicted + other.evicted,
            self.expired + other.expired,
            self.waiting + other.waiting,
            self.dropped + other.dropped,
            self.full + other.full,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """A merged step, before it changes the table.

    keys: uint64 [k], ascending, of all contributions. slots: int64 [k], those that take the gradients, all different;
    -1: none does. counts: uint32 [k], the entries' new counts. inserted: bool [k], a new entry: its row begins with its
    first value, and its state with zeros. evicted: uint64 [e], the keys that lose their slot. cells, contents: int64
    [c], uint32 [c, 2], the cells that change, ascending, and their columns.
    """

    step: int
    keys: U64
    slots: Ints
    counts: U32
    inserted: NDArray[np.bool_]
    evicted: U64
    cells: Ints
    contents: U32
    changes: Changes

    def changed(self) -> tuple[Ints, Ints]:
        """Return the slots that change, int64 [c] ascending, and the place in `keys` of the key of each, int64 [c]."""
        places = np.flatnonzero(self.slots >= 0)
        places = places[np.argsort(self.slots[places])]
        return self.slots[places], places

    def entries_at(self, places: Ints) -> U32:
        """Return the columns of the entries of some of `keys`, uint32 [c, 4]; places: int64 [c]."""
        keys = self.keys[places]
        halves = keys.astype(np.uint32), (keys >> np.uint64(32)).astype(np.uint32)
        return np.stack((*halves, np.full(len(places), self.step, np.uint32), self.counts[places]), axis=1)


class DynamicTable:
    """The entries of a table in some pages. One thread uses it.

    It derives a byte from each key, its tag, so that a search reads the 64 bytes of two buckets. Tags are not saved.
    """

    def __init__(self, pages: Pages, rules: Rules, entries: Entries) -> None:
        assert len(entries.low) == pages.slots, "a slot in each column"
        assert len(entries.cell_marks) == (pages.slots if rules.min_steps > 1 else 0), "cells for a table that counts"
        self.pages, self.rules, self.entries = pages, rules, entries
        self._buckets = Buckets(pages.slots // BUCKET_SLOTS)
        tags = np.where(entries.counts > 0, tags_of(join_halves(entries.low, entries.high)), 0)
        self._tags: U8 = tags.astype(np.uint8).reshape(-1, BUCKET_SLOTS)

    def find(self, keys: U64, step: int) -> Ints:
        """Return the slot of each key at a step, int64 [k]; -1 for an unknown or expired one. Nothing changes.

        keys: uint64 [k], ascending. Raises ValueError for a key of another shard.
        """
        return self._find(keys, self.pages.buckets(keys, self.pages.positions(keys)), step)

    def plan(self, step: int, contributions: Sequence[U64]) -> Update:
        """Compute the step `step` (from 1) with the keys of each rank, uint64 [k_r] each, in any order.

        Raises ValueError for a key of another shard.
        """
        keys = np.concatenate([np.empty(0, np.uint64), *contributions])
        keys.sort()  # numpy's `unique` finds different integers by a hash table, in ten times the time
        keys = keys[first_of_runs(keys)]
        positions = self.pages.positions(keys)
        buckets = self.pages.buckets(keys, positions)
        slots = self._find(keys, buckets, step)
        unknown = np.flatnonzero(slots < 0)
        counts = np.ones(len(keys), np.uint32)
        found = slots >= 0
        known = slots[found]
        before = self.rules.counts_at(self.entries.counts[known], self.entries.steps[known], step)
        counts[found] = np.minimum(before, np.uint32(MAX_COUNT - 1)) + np.uint32(1)
        inserted = np.zeros(len(keys), np.bool_)
        if not len(unknown):  # as in most steps of a small table
            return Update(step, keys, slots, counts, inserted, keys[:0], unknown, _NO_CONTENTS, Changes())

        count = self._count(positions[unknown], step)
        counts[unknown] = count.counts
        due = np.flatnonzero(count.counts >= self.rules.min_steps)
        due = due[np.argsort(-count.counts[due].astype(np.int64), kind="stable")]  # ascending keys where counts tie
        insertions = self._insert(buckets.take(unknown[due], axis=1), known, step)
        slots[unknown[due]] = insertions.slots

        inserted[unknown] = slots[unknown] >= 0
        cells, contents = count.changes(inserted[unknown], step)
        replaced = insertions.slots[insertions.evicts]
        used = np.count_nonzero(self.entries.counts[slots[inserted]])
        changes = Changes(
            admitted=int(np.count_nonzero(inserted)),
            evicted=len(replaced),
            expired=int(used) - len(replaced),
            waiting=len(unknown) - len(due),
            dropped=int(np.count_nonzero(insertions.slots < 0)),
            full=insertions.full,
        )
        evicted = self.entries.keys_at(replaced)
        return Update(step, keys, slots, counts, inserted, evicted, cells, contents, changes)

    def note(self, update: Update) -> None:
        """Note a plan that is in the columns now."""
        inserted = update.inserted
        self._tags.ravel()[update.slots[inserted]] = tags_of(update.keys[inserted])

    def commit(self, update: Update) -> None:
        """Store the entries and cells of a plan, which is of the present state, and note it."""
        entries, (slots, places) = self.entries, update.changed()
        entries.low[slots], entries.high[slots], entries.steps[slots], entries.counts[slots] = update.entries_at(
            places
        ).T
        if len(update.cells):
            entries.cell_steps[update.cells], entries.cell_marks[update.cells] = update.contents.T
        self.note(update)

    def keys(self, step: int) -> U64:
        """Return the keys of the table at a step, uint64 [n], ascending. It reads all entries."""
        return np.sort(self.entries.keys_at(np.flatnonzero(self.entries.steps >= self.rules.oldest_live(step))))

    def occupancy(self, step: int) -> int:
        """Return the number of entries at a step. It reads all of them."""
        return int(np.count_nonzero(self.entries.steps >= self.rules.oldest_live(step)))

    def waiting(self, step: int) -> int:
        """Return the number of keys that cells count at a step. It reads all cells."""
        return int(np.count_nonzero(self.entries.cell_steps >= self.rules.oldest_live(step)))

    def _find(self, keys: U64, buckets: Ints, step: int) -> Ints:
        slots, least = np.full(len(keys), -1, np.int64), self.rules.oldest_live(step)
        for first in range(0, len(keys), _KEYS_AT_ONCE):
            part = keys[first : first + _KEYS_AT_ONCE]
            pairs = buckets[:, first : first + _KEYS_AT_ONCE]
            # Each tag 32 times, for the slots of a bucket.
            tags = np.repeat(tags_of(part) * _EACH_BYTE, BUCKET_SLOTS // 8).view(np.uint8)
            at = np.flatnonzero(self._tags.take(pairs, axis=0).reshape(2, -1) == tags)
            which = at // BUCKET_SLOTS
            candidates = pairs.ravel()[which] * BUCKET_SLOTS + (at & (BUCKET_SLOTS - 1))
            places = which - (which >= len(part)) * len(part)
            same = self.entries.keys_at(candidates) == part[places]
            candidates, places = candidates[same], places[same]
            # An expired entry may have the key, too: at most one is live.
            live = self.entries.steps[candidates] >= least
            slots[first + places[live]] = candidates[live]
        return slots

    def _count(self, positions: U64, step: int) -> Count:
        """Return the count of keys without a slot; a table that admits at the first push has no cells."""
        if self.rules.min_steps == 1:
            none = np.empty(0, np.int64)
            return Count(np.ones(len(positions), np.uint32), none, none, np.empty(0, np.uint32))
        return count_keys(self.entries, self.pages, positions, self.rules, step)

    def _insert(self, pairs: Ints, pinned: Ints, step: int) -> Insertions:
        """Return the slots of new keys, int64 [2, m] buckets in the order of insertion; pinned: int64 [p], slots."""
        buckets = pairs.ravel()
        self._buckets.begin(buckets, self.entries.live_bits(buckets, self.rules, step), pinned)
        insertions = self._buckets.insert(pairs, partial(self.entries.victims, rules=self.rules, step=step))
        self._buckets.end(buckets, pinned)
        return insertions
