"""Steps of a dynamic table with keys that meet in few buckets, and their differences from the reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from cpr_contract.model import PAGE_SLOTS
from cpr_trainer.embedding.dynamic.entries import CELL_COLUMNS, ENTRY_COLUMNS, Entries, Rules
from cpr_trainer.embedding.dynamic.pages import BandKeys, Pages
from cpr_trainer.embedding.dynamic.table import Changes, DynamicTables, Update
from cprjob_serving.hashes import U64
from support.reference_table import Outcome, ReferenceTable

#: With four pages the position of a key is its upper 34 bits.
PAGES = 4
ROWS = PAGES * PAGE_SLOTS
Contributions = list[U64]


def universe() -> U64:
    """1,024 keys, ascending. Each page has three buckets of them, and two groups of cells with 32 fingerprints each."""
    fields = np.meshgrid(*map(np.arange, (PAGES, 2, 32, 4)), indexing="ij")
    page, group, fingerprint, tag = (each.ravel().astype(np.uint64) for each in fields)
    high = page << np.uint64(30) | group << np.uint64(22) | fingerprint
    low = tag << np.uint64(23) | (tag & np.uint64(1)) << np.uint64(17)
    return np.sort(high << np.uint64(32) | low)


def draw_steps(seed: int, count: int, ranks: int) -> list[Contributions]:
    """Return the contributions of some steps, each without an order, with overlaps between ranks and steps."""
    rng, keys = np.random.default_rng(seed), universe()
    weights = rng.permutation(1 / np.arange(400, len(keys) + 400))
    steps = []
    for _ in range(count):
        size = int(rng.integers(1, 800))
        drawn = rng.choice(keys, size, replace=False, p=weights / weights.sum())
        steps.append([rng.permutation(drawn[rng.random(size) < share]) for share in rng.uniform(0.3, 1, ranks)])
    return steps


class Shards:
    """The shards of one table."""

    def __init__(self, rules: Rules, shards: int) -> None:
        self.rules = rules
        pages = [Pages.of(ROWS, shards=shards, shard=shard) for shard in range(shards)]
        self.tables = [DynamicTables(each, rules, empty_entries(each, rules)) for each in pages]

    def on_shard(self, table: DynamicTables, keys: U64) -> U64:
        """Return the keys of a shard's pages."""
        pages = np.array([int(key) * PAGES >> 64 for key in keys.tolist()], np.int64)
        return keys[(table.pages.first <= pages) & (pages < table.pages.last)]

    def plan(self, step: int, contributions: Sequence[U64]) -> list[Update]:
        """Plan a step on all shards."""
        keys = np.unique(np.concatenate([np.empty(0, np.uint64), *contributions]))
        return [table.plan(step, keys_of_first(table, self.on_shard(table, keys))) for table in self.tables]

    def commit(self, updates: Sequence[Update]) -> None:
        """Commit what was planned."""
        for table, update in zip(self.tables, updates, strict=True):
            table.commit(update)

    def find(self, keys: U64, step: int) -> dict[int, int]:
        """Return the slots of keys, counted over all shards; -1 without."""
        found = dict[int, int]()
        for table in self.tables:
            mine = np.sort(self.on_shard(table, keys))
            found.update(zip(mine.tolist(), _global(table, table.find(keys_of_first(table, mine), step)), strict=True))
        return found

    def columns(self) -> bytes:
        """Return all columns of all slots, in their order."""
        entries = [table.entries for table in self.tables]
        return b"".join(np.concatenate(column).tobytes() for column in zip(*map(columns_of, entries), strict=True))

    def moved(self, shards: int) -> Shards:
        """Return the same table on another number of shards."""
        others = Shards(self.rules, shards)
        columns = zip(*(columns_of(each.entries) for each in self.tables), strict=True)
        whole = [np.concatenate(column) for column in columns]
        for place, table in enumerate(others.tables):
            at = slice(table.pages.first * PAGE_SLOTS, table.pages.last * PAGE_SLOTS)
            copied = empty_entries(table.pages, self.rules)
            for column, values in zip(columns_of(copied), whole, strict=True):
                column[...] = values[at]
            others.tables[place] = DynamicTables(table.pages, self.rules, copied)
        return others


def keys_of_first(table: DynamicTables, keys: U64) -> BandKeys:
    """Return keys of the first table of a band, uint64 [k] ascending."""
    return table.pages.locate(keys, np.zeros(len(keys), np.int64))


def empty_entries(pages: Pages, rules: Rules) -> Entries:
    """Return the entries of empty slots, behind a column of an optimizer."""
    cells = pages.slots if rules.min_steps > 1 else 0
    state = np.zeros((pages.slots, 1 + ENTRY_COLUMNS), np.float32)
    return Entries(state, np.zeros((cells, CELL_COLUMNS), np.float32))


def columns_of(entries: Entries) -> list[NDArray[np.unsignedinteger]]:
    """Return all columns."""
    return [entries.keys, entries.steps, entries.counts, entries.cells]


def outcome_of(shards: Shards, updates: Sequence[Update]) -> Outcome:
    """Return what the shards planned as the reference states it."""
    outcome = Outcome()
    for table, update in zip(shards.tables, updates, strict=True):
        slots = [None if slot < 0 else slot for slot in _global(table, update.slots)]
        keys = update.keys.keys
        outcome.slots.update(zip(keys.tolist(), slots, strict=True))
        outcome.inserted.update(keys[update.inserted].tolist())
        outcome.evicted += table.entries.keys[update.evicted].tolist()
        counted = {name: int(getattr(update.changes, name).sum()) for name in Changes.__slots__}
        assert counted.pop("admitted") == np.count_nonzero(update.inserted)
        assert counted.pop("evicted") == len(update.evicted)
        for name, count in counted.items():
            setattr(outcome, name, getattr(outcome, name) + count)
    return outcome


def differences(
    shards: Shards, reference: ReferenceTable, steps: Sequence[Contributions], first: int = 1
) -> Iterator[str]:
    """Take steps from `first` on with both, and yield where they differ. Each step looks up a quarter of all keys."""
    for step, contributions in enumerate(steps, first):
        keys = universe()[step % 4 :: 4]
        before = shards.columns()
        found = shards.find(keys, step)
        expected = {key: reference.find(key, step) for key in keys.tolist()}
        if found != {key: -1 if slot is None else slot for key, slot in expected.items()}:
            yield f"step {step}: lookups"
        updates = shards.plan(step, contributions)
        if shards.columns() != before:
            yield f"step {step}: a lookup or a plan changed the table"
        planned = outcome_of(shards, updates)
        outcome = reference.apply(step, [each.tolist() for each in contributions])
        planned.evicted.sort()
        outcome.evicted.sort()
        if planned != outcome:
            yield f"step {step}: the plan"
        shards.commit(updates)
        if not _same_entries(shards, reference):
            yield f"step {step}: the entries"
        if [int(table.occupancy(step).sum()) for table in shards.tables] != [
            sum(reference.live(slot, step) for slot in reference.entries if _holds(table, slot))
            for table in shards.tables
        ]:
            yield f"step {step}: the occupancy"


def _same_entries(shards: Shards, reference: ReferenceTable) -> bool:
    found, cells = dict[int, tuple[int, int, int]](), dict[int, tuple[int, int, int]]()
    for table in shards.tables:
        entries = table.entries
        used = np.flatnonzero(entries.counts)
        columns = (_global(table, used), entries.keys[used].tolist(), entries.steps[used].tolist())
        for slot, key, step, count in zip(*columns, entries.counts[used].tolist(), strict=True):
            found[slot] = key, step, count
        counting = np.flatnonzero(entries.cells[:, 1])
        for cell, (step, mark) in zip(_global(table, counting), entries.cells[counting].tolist(), strict=True):
            cells[cell] = mark >> 8, mark & 0xFF, step
    return found == dict(reference.columns()) and cells == reference.cells


def _global(table: DynamicTables, slots: NDArray[np.int64]) -> list[int]:
    """Return slots of a shard counted over all shards."""
    found: list[int] = np.where(slots < 0, slots, slots + table.pages.first * PAGE_SLOTS).tolist()
    return found


def _holds(table: DynamicTables, slot: int) -> bool:
    return table.pages.first <= slot // PAGE_SLOTS < table.pages.last
