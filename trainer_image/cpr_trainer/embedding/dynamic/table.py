"""The dynamic tables of a band on one shard: which slot each key has, and the merged steps that change it.

Only an applied step changes anything. `plan` computes a step without a change, so that the arena first keeps the old
contents of what changes, for a save in progress, and writes the redo record. It then stores the columns of the plan,
and the tables note them. A step finds all of its keys and pins them before it inserts the new ones, so that it evicts
no entry that it pushes. Tables share no page, and so no bucket: those of a band are searched and changed together.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import Self

import numpy as np
from numpy.typing import NDArray

from cpr_contract.model import PAGE_SLOTS
from cpr_trainer.arrays import Ints
from cpr_trainer.embedding.dynamic.admission_cells import Count, count_keys
from cpr_trainer.embedding.dynamic.entries import CELL_COLUMNS, ENTRY, MAX_COUNT, Entries, Rules, bits_of
from cpr_trainer.embedding.dynamic.insertion import Buckets, Insertions
from cpr_trainer.embedding.dynamic.pages import BUCKET_SLOTS, U8, U32, BandKeys, Pages, tags_of
from cprjob_serving.hashes import U64

#: The keys that are found together: their tags fit into the processor's cache.
_KEYS_AT_ONCE = 4096
_BUCKET_BITS, _PAIR_BITS = BUCKET_SLOTS.bit_length() - 1, BUCKET_SLOTS.bit_length()
#: Where the bits of a key's position that number its place among the slots of its page begin, and what they hold.
_BELOW_PLACE, _IN_PAGE = np.uint64(32 - PAGE_SLOTS.bit_length() + 1), PAGE_SLOTS - 1
_NO_CONTENTS = np.empty((0, CELL_COLUMNS), np.uint32)


@dataclass(frozen=True, slots=True, eq=False)
class Changes:
    """The effects of a step on the tables of a band on one shard, in keys, int64 [T] each.

    admitted: got a slot. evicted: lost their slot to an admitted key. expired: had expired before an admitted key took
    their slot. waiting: are not admitted yet. dropped: found only pinned slots, so their gradients are dropped. full:
    met two full buckets, and evicted an entry or were dropped.
    """

    admitted: Ints
    evicted: Ints
    expired: Ints
    waiting: Ints
    dropped: Ints
    full: Ints

    @classmethod
    def none(cls, tables: int) -> Self:
        """Return those of a step without new keys."""
        return cls(*[np.zeros(tables, np.int64)] * len(fields(cls)))

    def plus(self, other: Changes) -> Changes:
        """Return the sum of both."""
        return Changes(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """A merged step, before it changes the tables.

    keys: [k], of all contributions; `new_keys` of them had no slot before. slots: int64 [k], those that take the
    gradients, all different; -1: none does. counts: uint32 [k], the entries' new counts. inserted: bool [k], a new
    entry: its row begins with its first value, and its state with zeros. evicted: int64 [e], the slots that lose their
    key. cells, contents: int64 [c], uint32 [c, 2], the cells that change, ascending, and their columns.
    """

    step: int
    keys: BandKeys
    new_keys: int
    slots: Ints
    counts: U32
    inserted: NDArray[np.bool_]
    evicted: Ints
    cells: Ints
    contents: U32
    changes: Changes

    @property
    def places(self) -> Ints | slice:
        """The places in `keys` of those with a slot, ascending: a slice if all have one, so that nothing is copied."""
        stored = self.slots >= 0
        return slice(None) if stored.all() else np.flatnonzero(stored)


class DynamicTables:
    """The entries of the tables of a band in some pages. One thread uses it.

    A search first compares a key with a single entry: the one that was last found for any key at the same place in the
    page. It is the right one for most keys of a step. For the others the search reads their two buckets, 64 bytes of
    tags: a tag is a byte of the key. Neither tags nor these hints are saved.
    """

    def __init__(self, pages: Pages, rules: Rules, entries: Entries) -> None:
        assert len(entries) == pages.slots, "an entry for each slot"
        assert len(entries.cells) == (pages.slots if rules.min_steps > 1 else 0), "cells for tables that count"
        self.pages, self.rules, self.entries = pages, rules, entries
        self._no_changes = Changes.none(len(pages.order.counts))
        self._buckets = Buckets(pages.slots // BUCKET_SLOTS)
        tags = np.where(entries.counts > 0, tags_of(entries.keys), 0)
        self._tags: U8 = tags.astype(np.uint8).reshape(-1, BUCKET_SLOTS)
        #: The slot, counted from the page's first, that was found for a key at each place in the page.
        self._hints = np.zeros(pages.slots, np.uint16)
        #: The last search since a step: its keys and step, and their slots and the entries there.
        self._found: tuple[BandKeys, int, Ints, NDArray[np.void]] | None = None

    def find(self, keys: BandKeys, step: int) -> Ints:
        """Return the slot of each key at a step, int64 [k]; -1 for an unknown or expired one. No entry changes."""
        return self._search(keys, step)[0]

    def plan(self, step: int, keys: BandKeys) -> Update:
        """Compute the step `step` (from 1) with the keys of all ranks."""
        slots, entries = self._search(keys, step)
        found = slots >= 0
        unknown, inserted = np.flatnonzero(~found), np.zeros(len(keys), np.bool_)
        if not len(unknown):  # as in most steps of small tables
            counts = self._counts_after(entries, step)
            return Update(step, keys, 0, slots, counts, inserted, unknown, unknown, _NO_CONTENTS, self._no_changes)

        new, known, slots = keys.select(unknown), slots[found], slots.copy()
        count = self._count(new.positions, step)
        counts = np.empty(len(keys), np.uint32)
        counts[found], counts[unknown] = self._counts_after(entries[found], step), count.counts
        due = np.flatnonzero(count.counts >= self.rules.min_steps)
        due = due[np.argsort(-count.counts[due].astype(np.int64), kind="stable")]  # ascending keys where counts tie
        insertions = self._insert(new.buckets().take(due, axis=1), known, step)
        slots[unknown[due]] = insertions.slots
        inserted[unknown] = slots[unknown] >= 0
        cells, contents = count.changes(inserted[unknown], step)
        evicted = insertions.slots[insertions.evicts]
        changes = self._changes(new, slots[unknown], due, insertions)
        return Update(step, keys, len(unknown), slots, counts, inserted, evicted, cells, contents, changes)

    def _counts_after(self, entries: NDArray[np.void], step: int) -> U32:
        """Return the counts of entries after a push of their keys, uint32 [k]."""
        before = self.rules.counts_at(entries["count"], entries["step"], step)
        counts: U32 = np.minimum(before, np.uint32(MAX_COUNT - 1)) + np.uint32(1)
        return counts

    def _changes(self, new: BandKeys, slots: Ints, due: Ints, insertions: Insertions) -> Changes:
        """Return the effects of a step with new keys. slots: int64 [n], theirs. due: int64 [m], those to insert."""

        def of_tables(which: NDArray[np.bool_] | Ints) -> Ints:
            return np.bincount(new.tables[which], minlength=len(self.pages.order.counts))

        stored, of_due = slots >= 0, of_tables(due)
        used = np.zeros(len(slots), np.bool_)
        used[stored] = self.entries.counts[slots[stored]] > 0
        evicted = of_tables(due[insertions.evicts])
        return Changes(
            admitted=of_tables(stored),
            evicted=evicted,
            expired=of_tables(used) - evicted,
            waiting=of_tables(np.arange(len(slots))) - of_due,
            dropped=of_tables(due[insertions.slots < 0]),
            full=of_tables(due[insertions.full]),
        )

    def note(self, update: Update) -> None:
        """Note a plan that is in the columns now."""
        self._found = None
        if not update.new_keys:
            return
        inserted = update.inserted
        self._tags.ravel()[update.slots[inserted]] = tags_of(update.keys.keys[inserted])

    def commit(self, update: Update) -> None:
        """Store the entries and cells of a plan, which is of the present state, and note it."""
        places = update.places
        keys = update.keys.keys[places]
        entries = np.empty(len(keys), ENTRY)
        entries["key"], entries["step"], entries["count"] = keys, update.step, update.counts[places]
        self.entries.put(update.slots[places], entries)
        self.entries.cells[update.cells] = update.contents
        self.note(update)

    def keys(self, table: int, step: int) -> U64:
        """Return the keys of a table at a step, uint64 [n], ascending. It reads all of its entries."""
        slots = self.pages.slots_in(table).ravel()
        return np.sort(self.entries.keys[slots[self.entries.steps[slots] >= self.rules.oldest_live(step)]])

    def occupancy(self, step: int) -> Ints:
        """Return the number of entries of each table at a step, int64 [T]. It reads all of them."""
        return self._live(self.entries.steps, step)

    def waiting(self, step: int) -> Ints:
        """Return the number of keys of each table that cells count at a step, int64 [T]. It reads all cells."""
        return self._live(self.entries.cells[:, 0], step)

    def _live(self, steps: U32, step: int) -> Ints:
        live = np.count_nonzero(steps.reshape(-1, PAGE_SLOTS) >= self.rules.oldest_live(step), axis=1)
        found = np.zeros(len(self.pages.order.counts), np.int64)
        np.add.at(found, self.pages.tables[: len(live)], live)
        return found

    def _search(self, keys: BandKeys, step: int) -> tuple[Ints, NDArray[np.void]]:
        """Return the slots of keys, and the entries there; that of a key without a slot means nothing.

        A trainer pushes what it looked up, and `FrameRows` returns the same keys for both: the last search stays.
        """
        if self._found is not None:
            last, of_step, slots, entries = self._found
            if of_step == step and last is keys:
                return slots, entries
        slots, entries = self._find(keys, self.rules.oldest_live(step))
        self._found = keys, step, slots, entries
        return slots, entries

    def _find(self, keys: BandKeys, least: int) -> tuple[Ints, NDArray[np.void]]:
        """Search keys among the entries that were pushed in step `least` or later."""
        places = (keys.positions >> _BELOW_PLACE).view(np.int64)
        slots = (places & ~_IN_PAGE) + self._hints.take(places)
        entries = self.entries.take(slots)
        others = np.flatnonzero((entries["key"] != keys.keys) | (entries["step"] < least))
        if len(others):
            slots[others] = -1
            for first in range(0, len(others), _KEYS_AT_ONCE):
                part = others[first : first + _KEYS_AT_ONCE]
                slots[part] = self._find_in_buckets(keys.select(part), least)
            found = others[slots[others] >= 0]
            entries[found] = self.entries.take(slots[found])
            self._hints[places[found]] = slots[found] & _IN_PAGE
        return slots, entries

    def _find_in_buckets(self, keys: BandKeys, least: int) -> Ints:
        """Return the slots of keys by the tags in their buckets, int64 [k]; -1 for a key without one."""
        found, buckets = np.full(len(keys), -1, np.int64), keys.buckets().T.ravel()
        tags = self._tags.take(buckets, axis=0).reshape(len(keys), -1)
        at = np.flatnonzero(tags == tags_of(keys.keys)[:, np.newaxis])
        slots = buckets.take(at >> _BUCKET_BITS) * BUCKET_SLOTS + (at & (BUCKET_SLOTS - 1))
        entries, key = self.entries.take(slots), at >> _PAIR_BITS
        # An expired entry may have the key, too: at most one is live.
        mine = np.flatnonzero((entries["key"] == keys.keys.take(key)) & (entries["step"] >= least))
        found[key.take(mine)] = slots.take(mine)
        return found

    def _count(self, positions: U64, step: int) -> Count:
        """Return the count of keys without a slot; tables that admit at the first push have no cells."""
        if self.rules.min_steps == 1:
            none = np.empty(0, np.int64)
            return Count(np.ones(len(positions), np.uint32), none, none, np.empty(0, np.uint32))
        return count_keys(self.entries, positions, self.rules, step)

    def _live_bits(self, buckets: Ints, step: int) -> U32:
        """Return a bit for each live slot of some buckets, uint32 [b]."""
        if self.rules.ttl_steps:
            return self.entries.live_bits(buckets, self.rules, step)
        return bits_of(self._tags.take(buckets, axis=0) != 0)  # nothing expires

    def _insert(self, pairs: Ints, pinned: Ints, step: int) -> Insertions:
        """Return the slots of new keys, int64 [2, m] buckets in the order of insertion; pinned: int64 [p], slots."""
        buckets = pairs.ravel()
        self._buckets.begin(buckets, self._live_bits(buckets, step), pinned)
        insertions = self._buckets.insert(pairs, partial(self.entries.victims, rules=self.rules, step=step))
        self._buckets.end(buckets, pinned)
        return insertions
