"""Loads an anchor of other tables: every row that some table of this job starts from, and first values.

One more table changes the place of every row, so each shard reads all saves of the anchor, part by part.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from cpr_trainer.arrays import Floats, Ints
from cpr_trainer.checkpoint.format.documents import Found, read_chain
from cpr_trainer.checkpoint.restore.by_name import Source, TableMapping
from cpr_trainer.checkpoint.restore.other_entries import EntryTarget, entry_targets
from cpr_trainer.checkpoint.restore.saved_tables import SavedPart, SavedTables
from cpr_trainer.embedding.arena import LocalRows
from cpr_trainer.embedding.segments import Seeding
from cpr_trainer.store import Store, in_parallel


def take_first_values(local: LocalRows, source: TableMapping | int | None) -> None:
    """Give rows that are in no save the first values of the anchor's job, as changes that every save holds.

    source: the mapping of tables; for equal tables the seed of that job; None if only this job's seed is known. Rows
    with the same first values in both jobs stay as they are, and so do rows that start fresh. Dynamic tables are left
    out: keys without an entry have the first values of this job.
    """
    own, dynamic = local.seeding, _dynamic_tables(local)
    match source:
        case None:
            return
        case int():
            there = Seeding(own.rows, own.dims, source, own.precisions)
            sources: tuple[Source | None, ...] = tuple(Source(table, rows) for table, rows in enumerate(own.rows))
        case TableMapping():
            tables = source.tables
            there = Seeding(
                [table.rows for table in tables],
                [table.dim for table in tables],
                source.seed,
                [table.precision for table in tables],
            )
            sources = source.sources
    others = np.array(
        [
            each is not None
            and table not in dynamic
            and (there.seed, each.table, each.rows, there.precisions[each.table])
            != (own.seed, table, own.rows[table], own.precisions[table])
            for table, each in enumerate(sources)
        ]
    )
    if not others.any():
        return
    source_tables = np.array([0 if each is None else each.table for each in sources], np.int64)
    source_rows = np.array([1 if each is None else each.rows for each in sources], np.int64)
    repeated = np.array([each is not None and each.repeated for each in sources])
    arena = local.arena
    for chunk in local.placement.rows_of(local.index):
        slots = np.arange(chunk.first_slot, chunk.first_slot + len(chunk.rows))
        known = repeated[chunk.tables] | (chunk.rows < source_rows[chunk.tables])
        selected = (arena.epochs.of[slots] == 0) & others[chunk.tables] & known
        tables, rows, slots = chunk.tables[selected], chunk.rows[selected], slots[selected]
        for segment, inside in arena.parted(slots):
            segment.write(inside, there.values(source_tables[tables], rows % source_rows[tables]))
            segment.state[inside] = 0.0
        arena.epochs.of[slots] = 1


def _dynamic_tables(local: LocalRows) -> set[int]:
    return {table for band in local.dynamic for table in band.tables.tolist()}


def load_other_tables(store: Store, mapping: TableMapping, local: LocalRows, found: tuple[Found, ...]) -> None:
    """Load the rows of the mapped tables from the saves of all shards of an anchor, as changes.

    Rows that no save has stay as they are. Raises DamagedError, StoreError.
    """
    saved = SavedTables.of(mapping.tables, found)
    chains = [read_chain(store, top) for top in found]
    entries = entry_targets(store, mapping, local, saved, chains)
    sources = {source.table for source in mapping.sources if source is not None}
    loader = _PartLoader(store, local, _targets(mapping, local), entries)
    for chain in chains:
        for save in chain:
            in_parallel(loader.load, saved.parts(save, sources))
    local.arena.epochs.now = 2


def _targets(mapping: TableMapping, local: LocalRows) -> list[Ints]:
    """Return the targets for all copies of each row in tables that are not dynamic.

    Each is int64 [3, T], by table of the anchor: the target table, -1 for none; what is added to a row's place there;
    and the end of the places.
    """
    goals: list[list[tuple[int, int, int]]] = [[] for _ in mapping.tables]
    rows, dynamic = local.placement.rows_per_table, _dynamic_tables(local)
    for table, source in enumerate(mapping.sources):
        if source is not None and table not in dynamic:
            shifts = range(0, rows[table], source.rows) if source.repeated else (0,)
            goals[source.table] += [(table, shift, rows[table]) for shift in shifts]
    none = (-1, 0, 0)
    copies = range(max((len(each) for each in goals), default=0))
    chosen = ([each[copy] if copy < len(each) else none for each in goals] for copy in copies)
    return [np.array(each, np.int64).T for each in chosen]


@dataclass(frozen=True, slots=True, eq=False)
class _PartLoader:
    """Loads parts of saves."""

    store: Store
    local: LocalRows
    targets: list[Ints]
    entries: list[EntryTarget]

    def load(self, part: SavedPart) -> None:
        """Load the rows of a part. Raises DamagedError, StoreError."""
        for some in part.read(self.store):
            values = some.values()
            for targets in self.targets:
                self._put(targets, some.tables, some.rows, values, some.state)
            for entries in self.entries:
                if entries.source in part.band.tables:
                    entries.put(self.local.arena, some, values)

    def _put(self, targets: Ints, tables: Ints, rows: Ints, values: Floats, state: Floats) -> None:
        """Store rows [k, D] with their state [k, W] in the target tables, if they are on this shard."""
        local = self.local
        goals, shifts, ends = targets[:, tables]
        moved = rows + shifts
        selected = np.flatnonzero((goals >= 0) & (moved < ends))
        numbers = local.placement.offsets[goals[selected]] + moved[selected]
        shards, slots = local.placement.locate(numbers)
        here = np.flatnonzero(shards == local.index)
        here = here[np.argsort(slots[here])]  # several segments need them ascending
        slots, taken = slots[here], selected[here]
        for segment, (start, end) in zip(local.arena.segments, pairwise(local.arena.bounds(slots)), strict=True):
            if start == end:
                continue
            inside, mine = segment.within(slots[start:end]), taken[start:end]
            width = min(segment.state.shape[1], state.shape[1])
            segment.write(inside, values[mine])
            segment.state[inside] = 0.0
            segment.state[inside, :width] = state[mine, :width]
        local.arena.epochs.of[slots] = 1
