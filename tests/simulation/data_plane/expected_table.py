"""The dynamic table of a simulated job as it has to be after any of its steps, computed key after key.

The product's table has no part in it: entries and cells are those of the reference in plain loops, and rows follow from
the gradients of the keys that this inserts and finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from cpr_contract.limits import MAX_TRAINERS
from cpr_contract.model import PAGE_SLOTS, state_width
from cpr_contract.spec import JobSpec
from cpr_trainer.arrays import Floats
from cpr_trainer.embedding.arena import Arena
from cpr_trainer.embedding.bfloat16 import narrow, round_stochastically, rounding_keys, widen
from cpr_trainer.embedding.dynamic.entries import Rules
from cpr_trainer.embedding.dynamic.pages import Pages
from cpr_trainer.embedding.optimizers import changes_of
from cpr_trainer.embedding.segments import Seeding
from cprjob_serving.hashes import U64
from support.reference_table import Entry, ReferenceTable

#: A rank and one of its steps.
Push = tuple[int, int]
#: The keys of a shard that a rank pushes in a step, uint64 [k], and their gradients, float32 [k, D].
KeyPush = tuple[U64, Floats]


@dataclass(frozen=True, slots=True)
class TableState:
    """The part of a table on one shard. All is by slot or cell, counted over all shards, as `ReferenceTable` has it.

    rows: float32 [D]. sums: float32 [W], of the optimizer.
    """

    entries: dict[int, Entry] = field(default_factory=dict)
    cells: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    rows: dict[int, Floats] = field(default_factory=dict)
    sums: dict[int, Floats] = field(default_factory=dict)


class ExpectedTable:
    """The only dynamic table of a job, on each shard. pushed: returns what a shard gets of a rank in a step."""

    def __init__(self, job: JobSpec, seeding: Seeding, pushed: Callable[[int, int, int], KeyPush]) -> None:
        model = job.model
        (self._table,) = model.dynamic_tables
        spec = model.tables[self._table]
        assert spec.dynamic is not None, "the rules of a dynamic table"
        self._band, self._cell_band = model.bands[self._table], len(model.band_dims)
        self._pages = [Pages.of(spec.rows, shards=job.shards, shard=shard) for shard in range(job.shards)]
        self._rules, self._zero = Rules.of(spec.dynamic), spec.dynamic.default == "Zero"
        self._half, self._optimizer = spec.precision == "bf16", model.table_optimizers[self._table]
        self._dim = model.table_dims[self._table]
        self._width = state_width(self._optimizer.kind, self._dim)
        self._ranks, self._seeding, self._pushed = range(job.trainers), seeding, pushed
        #: By shard, step and the pushes up to it that the shard misses.
        self._states = {(shard, 0, frozenset[Push]()): TableState() for shard in range(job.shards)}

    def after(self, shard: int, step: int, missing: Iterable[Push]) -> TableState:
        """Return the table on a shard after a step, without these of the pushes up to it."""
        at, unknown = (shard, step, frozenset(missing)), list[tuple[int, int, frozenset[Push]]]()
        while at not in self._states:
            unknown.append(at)
            step -= 1
            at = shard, step, frozenset(push for push in at[2] if push[1] <= step)
        for each in reversed(unknown):
            self._states[each], at = self._take(self._states[at], *each), each
        return self._states[at]

    def vectors(self, state: TableState, keys: U64, step: int) -> Floats:
        """Return the vectors of keys at a step, float32 [k, D]: of one without a slot its first value."""
        found, table = self._first_values(keys), self._reference(state)
        for at, key in enumerate(keys.tolist()):
            if (slot := table.find(key, step)) is not None:
                found[at] = state.rows[slot]
        return found

    def differences(self, arena: Arena, shard: int, state: TableState) -> list[str]:
        """Return what a shard has otherwise than this state: the rows, their state with the entries, or the cells."""
        first, rows = self._pages[shard].first * PAGE_SLOTS, arena.segments[self._band]
        values, columns = np.zeros(rows.rows.shape, np.float32), np.zeros(rows.state.shape, np.float32)
        for slot, entry in state.entries.items():
            halves = entry.key & 0xFFFFFFFF, entry.key >> 32
            values[slot - first], columns[slot - first, : self._width] = state.rows[slot], state.sums[slot]
            columns.view(np.uint32)[slot - first, self._width :] = *halves, entry.step, entry.count
        same = {
            "rows": rows.read(slice(None)).tobytes() == values.tobytes(),
            "entries": rows.state.tobytes() == columns.tobytes(),
        }
        if self._rules.min_steps > 1:
            cells = arena.segments[self._cell_band].state
            marks = np.zeros(cells.shape, np.uint32)
            for cell, (fingerprint, count, step) in state.cells.items():
                marks[cell - first] = step, fingerprint << 8 | count
            same["cells"] = cells.tobytes() == marks.tobytes()
        return [what for what, equal in same.items() if not equal]

    def _take(self, before: TableState, shard: int, step: int, missing: frozenset[Push]) -> TableState:
        pushes = [self._pushed(shard, rank, step) for rank in self._ranks if (rank, step) not in missing]
        sums = dict[int, Floats]()
        for keys, gradients in pushes:  # in the order of ranks
            for key, gradient in zip(keys.tolist(), gradients, strict=True):
                sums[key] = sums[key] + gradient if key in sums else gradient
        table = self._reference(before)
        outcome = table.apply(step, [keys.tolist() for keys, _ in pushes])
        state = TableState(table.entries, table.cells, dict(before.rows), dict(before.sums))
        changed = sorted((slot, key) for key, slot in outcome.slots.items() if slot is not None)
        if not changed:
            return state
        keys = np.array([key for _, key in changed], np.uint64)
        first = self._first_values(keys)
        for at, (slot, key) in enumerate(changed):
            if key in outcome.inserted:
                state.rows[slot], state.sums[slot] = first[at], np.zeros(self._width, np.float32)
        values = np.array([state.rows[slot] for slot, _ in changed])
        columns = np.array([state.sums[slot] for slot, _ in changed])
        values += changes_of(self._optimizer, columns, np.array([sums[key] for _, key in changed]), step)
        if self._half:
            halves = np.empty(values.shape, np.uint16)
            round_stochastically(values, rounding_keys(keys.view(np.int64), step * MAX_TRAINERS), halves)
            values = widen(halves)
        for at, (slot, _) in enumerate(changed):
            state.rows[slot], state.sums[slot] = values[at], columns[at]
        return state

    def _reference(self, state: TableState) -> ReferenceTable:
        """Return the table with copies of this state."""
        table = ReferenceTable(len(self._pages[0].order), self._rules)
        table.entries, table.cells = dict(state.entries), dict(state.cells)
        return table

    def _first_values(self, keys: U64) -> Floats:
        if self._zero:
            return np.zeros((len(keys), self._dim), np.float32)
        found = self._seeding.values(np.full(len(keys), self._table), keys.view(np.int64))
        return widen(narrow(found)) if self._half else found
