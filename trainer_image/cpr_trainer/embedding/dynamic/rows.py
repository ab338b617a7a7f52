"""The dynamic tables of a band in the arena of a shard: entries are the last columns of their rows' state.

Cells are the state of rows without values, in a segment of their own. The arena stores both, from its redo record.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cpr_contract.spec import JobSpec
from cpr_trainer.arrays import Floats, Ints, Values
from cpr_trainer.embedding.bfloat16 import converted
from cpr_trainer.embedding.dynamic.entries import Entries, Rules, newest_of_keys
from cpr_trainer.embedding.dynamic.pages import U32, BandKeys
from cpr_trainer.embedding.dynamic.rehash import slots_in
from cpr_trainer.embedding.dynamic.table import Changes, DynamicTables, Update
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.embedding.segments import Seeding, Segment
from cprjob_serving.hashes import U64, Cells, hashes

_LOG = logging.getLogger(__name__)


class DynamicRows:
    """The dynamic tables of a band, `tables` of a model, in some segments of an arena.

    counted: the effects of all steps since the process began. Tables that admit at the first push have no cells, and
    `cell_band` None.
    """

    def __init__(self, job: JobSpec, placement: Placement, index: int, band: int, segments: Sequence[Segment]) -> None:
        """Take those on shard `index`. segments: all of its arena."""
        self.tables: Ints = np.flatnonzero(placement.band_of == band)
        specs = [job.model.tables[table] for table in self.tables.tolist()]
        rules = specs[0].dynamic
        assert rules is not None, "the rules of dynamic tables, which are equal in a band"
        self.band, self.cell_band = band, placement.cell_band(band)
        self.pages, self.counted = placement.pages(band, index), Changes.none(len(specs))
        self._rows = segments[band]
        self._cells = None if self.cell_band is None else segments[self.cell_band]
        self.first_slot, self.first_cell = self._rows.first, 0 if self._cells is None else self._cells.first
        self._names, self._hash_seeds = [spec.name for spec in specs], [spec.hash_seed for spec in specs]
        self._rules, self._zero = Rules.of(rules), rules.default == "Zero"
        self._seeding = Seeding.of(job.model, job.data.seed)

    @property
    def dim(self) -> int:
        """Values of a row."""
        return self._rows.dim

    def place_of(self, table: int) -> int:
        """Return the place in the band of a table of the model."""
        return int(np.searchsorted(self.tables, table))

    def keys_in(self, table: int, keys: U64) -> BandKeys:
        """Return keys of one table, uint64 [k], ascending. Raises ValueError for a key of another shard."""
        return self.pages.locate(keys, np.full(len(keys), table))

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
        for table in range(len(self.tables)):
            at = self.pages.slots_in(table).ravel()
            at = at[live[at]]
            live[at] = newest_of_keys(columns.keys[at], columns.steps[at])
        counts = np.maximum(rules.counts_at(columns.counts, np.minimum(columns.steps, step), step), 1)
        columns.counts[:] = np.where(live, counts, 0)
        columns.steps[:] = live
        columns.keys[~live] = 0
        columns.cells[:] = 0
        self.reload()

    def keys_of(self, table: int, texts: Cells) -> U64:
        """Return the keys of ids by their canonical bytes, uint64 [k]. table: its place in the band, as below."""
        return hashes(texts, "Dynamic", self._hash_seeds[table])

    def insert(self, table: int, keys: U64, steps: U32, counts: U32, step: int) -> Ints:
        """Store entries of a table of other pages into the empty table, as of `step`; return their slots, int64 [m].

        keys: uint64 [m], all of this shard. steps, counts: uint32 [m]. -1 is for an entry that has expired, one of a
        key with a newer one, and one that finds both of its buckets full, whose number is logged. The rows and their
        optimizer's state are the caller's.
        """
        live = np.flatnonzero(self._live(steps, step))
        live = live[newest_of_keys(keys[live], steps[live])]
        found = slots_in(self.pages, table, keys[live], steps[live], counts[live], rules=self._rules, step=step)
        stored = live[found >= 0]
        if dropped := len(live) - len(stored):
            name = self._names[table]
            _LOG.warning("table %s drops %d of %d entries: their buckets are full", name, dropped, len(live))
        slots = np.full(len(keys), -1, np.int64)
        slots[live] = found
        columns, at = self._columns(), slots[stored]
        columns.keys[at], columns.steps[at], columns.counts[at] = keys[stored], steps[stored], counts[stored]
        self.reload()
        return slots

    @cached_property
    def entries(self) -> DynamicTables:
        """The entries. They are read when this is first used."""
        return DynamicTables(self.pages, self._rules, self._columns())

    def read(self, keys: BandKeys, step: int) -> Values:
        """Return the vectors of keys at a step, [k, D] in the type of the rows."""
        slots = self.entries.find(keys, step)
        vectors = self._rows.rows.take(slots, axis=0, mode="clip")  # also of unknown keys: any row
        unknown = np.flatnonzero(slots < 0)
        if len(unknown):
            vectors[unknown] = converted(self._first_values(keys.select(unknown)), vectors.dtype)
        return vectors

    def plan(self, keys: BandKeys, step: int) -> Update:
        """Plan a step with the keys of all ranks."""
        return self.entries.plan(step, keys)

    def begin(self, planned: PlannedRows, rows: Values, state: Floats) -> None:
        """Give rows of new keys their first values, and all rows their entries, before the optimizer's step, in place.

        rows: [k, D], as they are. state: float32 [k, W].
        """
        update, places, entries = planned.update, planned.places, Entries(state)
        if update.new_keys:
            new, keys = np.flatnonzero(update.inserted[places]), update.keys.select(update.inserted)
            rows[new] = converted(self._first_values(keys), rows.dtype)
            state[new] = 0.0
            entries.keys[new] = keys.keys
        entries.steps[:], entries.counts[:] = update.step, update.counts[places]

    def note(self, update: Update) -> None:
        """Note a step that is in the rows now."""
        self.entries.note(update)
        if update.new_keys:
            self.counted = self.counted.plus(update.changes)

    def _live(self, steps: U32, step: int) -> NDArray[np.bool_]:
        return steps >= self._rules.oldest_live(step)

    def _columns(self) -> Entries:
        return Entries(self._rows.state, None if self._cells is None else self._cells.state)

    def _first_values(self, keys: BandKeys) -> Floats:
        if self._zero:
            return np.zeros((len(keys), self._rows.dim), np.float32)
        return self._seeding.values(self.tables[keys.tables], keys.keys.view(np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class PlannedRows:
    """The rows of a band that a step changes. places: `update.places`, those of the keys of these rows."""

    band: DynamicRows
    update: Update
    places: Ints | slice

    @property
    def tables(self) -> Ints:
        """The table of each row, int64 [k], as an index into those of the model."""
        return self.band.tables[self.update.keys.tables[self.places]]


def dynamic_rows(
    job: JobSpec, placement: Placement, index: int, segments: Sequence[Segment]
) -> tuple[DynamicRows, ...]:
    """Return the dynamic tables on shard `index`, band after band. segments: of its arena."""
    bands = [band for band in range(placement.table_bands) if placement.is_dynamic(band)]
    return tuple(DynamicRows(job, placement, index, band, segments) for band in bands)
