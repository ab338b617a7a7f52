"""Entries of dynamic tables from an anchor of other tables.

In as many pages each entry keeps its slot, bit for bit. Entries of other pages, and rows of tables that have one for
each id, are inserted: a first pass over the saves finds the entries of this shard's pages, and only then a second one
stores their rows, so that no row is in memory twice. The result does not depend on the number of shards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from cpr_contract.manifests import SavedTable
from cpr_contract.model import state_width
from cpr_trainer.arrays import Floats, Ints
from cpr_trainer.checkpoint.format.documents import Found
from cpr_trainer.checkpoint.format.records import read_values
from cpr_trainer.checkpoint.restore.by_name import TableMapping
from cpr_trainer.checkpoint.restore.saved_tables import SavedPart, SavedRows, SavedTables
from cpr_trainer.embedding.arena import Arena, LocalRows
from cpr_trainer.embedding.dynamic.entries import ENTRY_COLUMNS, Entries
from cpr_trainer.embedding.dynamic.pages import U32
from cpr_trainer.embedding.dynamic.rows import DynamicRows
from cpr_trainer.embedding.segments import Segment
from cpr_trainer.store import Store, in_parallel
from cprjob_serving.hashes import U64, WORD_BYTES, Cells

#: The saves of a shard, oldest first.
Chain = tuple[Found, ...]
#: Returns the keys, last steps and counts of rows, uint64 [k] and uint32 [k], by their numbers and state. A row that is
#: no entry has step 0.
_Contents = Callable[[Ints, Floats], tuple[U64, U32, U32]]
_DIGITS = len(str(np.iinfo(np.int64).max))


@dataclass(frozen=True, slots=True, eq=False)
class EntryTarget:
    """A dynamic table that takes rows of table `source` of an anchor, with the first `width` columns of their state.

    slots_of: returns the place in the segment of each row, int64 [k]; -1 for one that is not on this shard.
    """

    source: int
    segment: Segment
    width: int
    slots_of: Callable[[Ints], Ints]

    def put(self, arena: Arena, saved: SavedRows, values: Floats) -> None:
        """Store the rows of the source among some rows of a save, with these vectors, float32 [k, D]."""
        mine = np.flatnonzero(saved.tables == self.source)
        slots = self.slots_of(saved.rows[mine])
        mine, slots = mine[slots >= 0], slots[slots >= 0]
        self.segment.write(slots, values[mine])
        self.segment.state[slots, : self.width] = saved.state[mine, : self.width]
        arena.epochs.of[slots + self.segment.first] = 1


def entry_targets(
    store: Store, mapping: TableMapping, local: LocalRows, saved: SavedTables, chains: Sequence[Chain]
) -> list[EntryTarget]:
    """Return the targets of the rows that become entries of the dynamic tables, and store inserted entries.

    Raises DamagedError, StoreError.
    """
    manifest = chains[0][-1][0]
    step = max(manifest.step, 1)  # at step 0 there is no entry
    targets, gathered = list[EntryTarget](), list[_Gathered]()
    for band, place in ((each, place) for each in local.dynamic for place in range(len(each.tables))):
        source = mapping.sources[band.tables[place]]
        if source is None:
            continue
        there = mapping.tables[source.table]
        if source.inserted:
            contents = _contents(store, manifest.job_uid, there, partial(band.keys_of, place), step)
            seen = np.zeros(saved.alone.rows_per_table[source.table], np.bool_)
            gathered.append(_Gathered(band, place, source.table, contents, seen))
        else:
            slots_of = partial(band.pages.slots_of, place)
            width = state_width(there.optimizer, there.dim) + ENTRY_COLUMNS
            targets.append(EntryTarget(source.table, local.arena.segments[band.band], width, slots_of))
    _gather(store, saved, chains, gathered)
    for each in gathered:
        numbers, slots = each.insert(step)
        there = mapping.tables[each.source]
        width = state_width(there.optimizer, there.dim)
        slots_of = partial(_inserted_slots, numbers=numbers, slots=slots)
        targets.append(EntryTarget(each.source, local.arena.segments[each.band.band], width, slots_of))
    return targets


@dataclass(frozen=True, slots=True, eq=False)
class _Gathered:
    """The entries that are found for a table of a band, in the pages of this shard.

    seen: bool [rows of the source], the rows that a newer save has. found: arrays of the numbers, keys, steps
    and counts of entries.
    """

    band: DynamicRows
    table: int
    source: int
    contents: _Contents
    seen: NDArray[np.bool_]
    found: list[tuple[Ints, U64, U32, U32]] = field(default_factory=list)

    def add(self, saved: SavedRows) -> None:
        """Add the entries among some rows of a save, except those that a newer save has."""
        mine = np.flatnonzero(saved.tables == self.source)
        mine = mine[~self.seen[saved.rows[mine]]]
        rows = saved.rows[mine]
        self.seen[rows] = True
        keys, steps, counts = self.contents(rows, saved.state[mine])
        here = np.flatnonzero(self.band.pages.hold(self.table, keys) & (steps > 0))
        self.found.append((rows[here], keys[here], steps[here], counts[here]))

    def insert(self, step: int) -> tuple[Ints, Ints]:
        """Insert the entries, as of a step; return the numbers, ascending, and slots of those that got one, int64."""
        none = np.empty(0, np.int64), np.empty(0, np.uint64), np.empty(0, np.uint32), np.empty(0, np.uint32)
        numbers, keys, steps, counts = map(np.concatenate, zip(none, *self.found, strict=True))
        order = np.argsort(numbers)
        slots = self.band.insert(self.table, keys[order], steps[order], counts[order], step)
        return numbers[order][slots >= 0], slots[slots >= 0]


def _gather(store: Store, saved: SavedTables, chains: Sequence[Chain], gathered: Sequence[_Gathered]) -> None:
    """Find entries in all saves, the newest of each shard first: it has the present entry of a slot that it holds."""

    def find(part: SavedPart) -> None:
        for rows in part.read(store):
            for each in gathered:
                each.add(rows)

    sources = {each.source for each in gathered}
    for chain in chains:
        for save in reversed(chain):
            in_parallel(find, saved.parts(save, sources))  # parts of one save have different rows


def _contents(store: Store, job_uid: str, there: SavedTable, keys_of: Callable[[Cells], U64], step: int) -> _Contents:
    """Return the contents of rows of an anchor's table as entries of another. job_uid: of the anchor's job.

    Rows of tables that are not dynamic count as pushed in `step` alone.
    """
    if there.is_dynamic:
        return _entries_in
    if there.ids == "Vocabulary":
        keys = keys_of(read_values(store, job_uid, there.vocabulary).values)
        return lambda rows, _: _entries_of_values(keys, rows, step)
    return lambda rows, _: _once(keys_of(_decimals(rows)), step)


def _entries_in(_: Ints, state: Floats) -> tuple[U64, U32, U32]:
    entries = Entries(state)
    return entries.keys, entries.steps, entries.counts


def _entries_of_values(keys: U64, rows: Ints, step: int) -> tuple[U64, U32, U32]:
    """Return entries of rows of a vocabulary with these keys, uint64 [n]: row 0 and those above n have no value."""
    known = (rows > 0) & (rows <= len(keys))
    of_rows, steps, counts = _once(keys[np.where(known, rows, 1) - 1], step)
    steps[~known] = 0
    return of_rows, steps, counts


def _once(keys: U64, step: int) -> tuple[U64, U32, U32]:
    return keys, np.full(len(keys), step, np.uint32), np.ones(len(keys), np.uint32)


def _decimals(numbers: Ints) -> Cells:
    """Return the decimal text of each number, at least 0."""
    texts = numbers.astype(f"S{_DIGITS}")
    data = np.concatenate((texts.view(np.uint8), np.zeros(WORD_BYTES, np.uint8)))
    return Cells(data, np.arange(len(numbers)) * _DIGITS, np.char.str_len(texts).astype(np.int64))


def _inserted_slots(rows: Ints, numbers: Ints, slots: Ints) -> Ints:
    if not len(numbers):
        return np.full(len(rows), -1, np.int64)
    at = np.minimum(np.searchsorted(numbers, rows), len(numbers) - 1)
    return np.where(numbers[at] == rows, slots[at], -1)
