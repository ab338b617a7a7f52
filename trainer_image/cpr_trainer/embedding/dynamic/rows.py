"""A dynamic table in the arena of a shard: its entries are the last columns of its rows' state.

Cells are the state of rows without values, in a segment of their own. The arena stores both, from its redo record.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cpr_contract.model import TableSpec
from cpr_contract.spec import JobSpec
from cpr_trainer.arrays import Floats, Ints, Values
from cpr_trainer.embedding.bfloat16 import converted
from cpr_trainer.embedding.dynamic.entries import ENTRY_COLUMNS, Entries, Rules, newest_of_keys
from cpr_trainer.embedding.dynamic.pages import U32, Pages
from cpr_trainer.embedding.dynamic.rehash import slots_in
from cpr_trainer.embedding.dynamic.table import Changes, DynamicTable, Update
from cpr_trainer.embedding.placement import Placement, counted_tables
from cpr_trainer.embedding.segments import Seeding, Segment
from cprjob_serving.hashes import U64, Cells, hashes

_LOG = logging.getLogger(__name__)


class DynamicRows:
    """Table number `table` of a model, in some segments of an arena; `band` and `cell_band` are their numbers.

    counted: the effects of all steps since the process began. A table that admits at the first push has no cells.
    """

    def __init__(  # noqa: PLR0913 -- the table, and its place in the arena
        self,
        table: int,
        spec: TableSpec,
        pages: Pages,
        seeding: Seeding,
        *,
        band: int,
        rows: Segment,
        cell_band: int | None,
        cells: Segment | None,
    ) -> None:
        assert spec.dynamic is not None, "the rules of a dynamic table"
        self.table, self.band, self.cell_band = table, band, cell_band
        self._name = spec.name
        self.first_slot, self.first_cell = rows.first, 0 if cells is None else cells.first
        self.counted = Changes()
        self._zero, self._hash_seed = spec.dynamic.default == "Zero", spec.hash_seed
        self._rules, self._pages, self._seeding = Rules.of(spec.dynamic), pages, seeding
        self._rows, self._cells = rows, cells

    def reload(self) -> None:
        """Derive everything again: the rows have changed otherwise than by a step."""
        self.__dict__.pop("entries", None)

    def start_over(self, step: int) -> None:
        """Continue with the entries of another job, after its step `step`: the clock starts again.

        Entries that have expired are gone. All others count as pushed in step 1, with their counts as of then. No key
        is counted before its admission.
        """
        columns, rules = self._columns(), self._rules
        live = self._live(columns.steps, step)
        at = np.flatnonzero(live)
        live[at] = newest_of_keys(columns.keys_at(at), columns.steps[at])
        counts = np.maximum(rules.counts_at(columns.counts, np.minimum(columns.steps, step), step), 1)
        columns.counts[:] = np.where(live, counts, 0)
        columns.steps[:] = live
        columns.low[~live] = columns.high[~live] = 0
        columns.cell_steps[:] = columns.cell_marks[:] = 0
        self.reload()

    def keys_of(self, texts: Cells) -> U64:
        """Return the keys of ids by their canonical bytes, uint64 [k]."""
        return hashes(texts, "Dynamic", self._hash_seed)

    def insert(self, keys: U64, steps: U32, counts: U32, step: int) -> Ints:
        """Store entries of a table of other pages into the empty table, as of `step`; return their slots, int64 [m].

        keys: uint64 [m], all of this shard. steps, counts: uint32 [m]. -1 is for an entry that has expired, one of a
        key with a newer one, and one that finds both of its buckets full, whose number is logged. The rows and their
        optimizer's state are the caller's.
        """
        live = np.flatnonzero(self._live(steps, step))
        live = live[newest_of_keys(keys[live], steps[live])]
        found = slots_in(self._pages, keys[live], steps[live], counts[live], rules=self._rules, step=step)
        stored = live[found >= 0]
        if dropped := len(live) - len(stored):
            _LOG.warning("table %s drops %d of %d entries: their buckets are full", self._name, dropped, len(live))
        slots = np.full(len(keys), -1, np.int64)
        slots[live] = found
        columns, at = self._columns(), slots[stored]
        columns.low[at], columns.high[at] = keys[stored].astype(np.uint32), keys[stored] >> np.uint64(32)
        columns.steps[at], columns.counts[at] = steps[stored], counts[stored]
        self.reload()
        return slots

    @cached_property
    def entries(self) -> DynamicTable:
        """The entries. They are read when this is first used."""
        return DynamicTable(self._pages, self._rules, self._columns())

    def values_of(self, keys: U64) -> int:
        """Return the number of values of the vectors of keys, uint64 [k].

        Raises ValueError unless they are ascending, all different, and of this shard.
        """
        if not (keys[1:] > keys[:-1]).all():
            raise ValueError("keys are not in ascending order")
        self._pages.positions(keys[[0, -1]] if len(keys) else keys)
        return len(keys) * self._rows.dim

    def read(self, keys: U64, step: int) -> Values:
        """Return the vectors of keys at a step, [k, D] in the type of the rows. keys: uint64 [k], ascending."""
        slots = self.entries.find(keys, step)
        vectors = self._rows.rows.take(np.maximum(slots, 0), axis=0)
        unknown = np.flatnonzero(slots < 0)
        if len(unknown):
            vectors[unknown] = converted(self._first_values(keys[unknown]), vectors.dtype)
        return vectors

    def plan(self, keys: U64, step: int) -> Update:
        """Plan a step with the keys of all ranks, uint64 [k]."""
        return self.entries.plan(step, [keys])

    def begin(self, planned: PlannedRows, rows: Values, state: Floats) -> None:
        """Give rows of new keys their first values, and all rows their entries, before the optimizer's step, in place.

        rows: [k, D], as they are. state: float32 [k, W].
        """
        update, places = planned.update, planned.places
        new = np.flatnonzero(update.inserted[places])
        if len(new):
            rows[new] = converted(self._first_values(update.keys[places[new]]), rows.dtype)
            state[new] = 0.0
        state.view(np.uint32)[:, -ENTRY_COLUMNS:] = update.entries_at(places)

    def note(self, update: Update) -> None:
        """Note a step that is in the rows now."""
        self.entries.note(update)
        self.counted = self.counted.plus(update.changes)

    def _live(self, steps: U32, step: int) -> NDArray[np.bool_]:
        return steps >= self._rules.oldest_live(step)

    def _columns(self) -> Entries:
        return Entries.of(self._rows.state, None if self._cells is None else self._cells.state)

    def _first_values(self, keys: U64) -> Floats:
        if self._zero:
            return np.zeros((len(keys), self._rows.dim), np.float32)
        return self._seeding.values(np.full(len(keys), self.table, np.int64), keys.view(np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class PlannedRows:
    """The rows of a table that a step changes. places: int64 [k], those in `update.keys` of the keys of these rows."""

    table: DynamicRows
    update: Update
    places: Ints


def dynamic_rows(
    job: JobSpec, placement: Placement, index: int, segments: Sequence[Segment]
) -> tuple[DynamicRows, ...]:
    """Return the dynamic tables on shard `index`, in the order of their bands. segments: of its arena."""
    model, seeding = job.model, Seeding.of(job.model, job.data.seed)
    counted, found = counted_tables(model), []
    for table in model.dynamic_tables:
        band = model.bands[table]
        cell_band = placement.table_bands + counted.index(table) if table in counted else None
        found.append(
            DynamicRows(
                table,
                model.tables[table],
                placement.pages(band, index),
                seeding,
                band=band,
                rows=segments[band],
                cell_band=cell_band,
                cells=None if cell_band is None else segments[cell_band],
            )
        )
    return tuple(found)
