"""Loads an anchor of other tables: every row that some table of this job starts from, and first values.

One more table changes the place of every row, so each shard reads all saves of the anchor, part by part.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from cpr_contract.choices import Precision
from cpr_contract.manifests import Part, ShardManifest
from cpr_contract.model import state_width
from cpr_trainer.arrays import Floats, Ints
from cpr_trainer.checkpoint.format.documents import DamagedError, Found, parts_of, read_chain, read_rows
from cpr_trainer.checkpoint.format.parts import Shape
from cpr_trainer.checkpoint.format.quantise import decode_rows, record_bytes, value_bits
from cpr_trainer.checkpoint.restore.by_name import Source, TableMapping
from cpr_trainer.embedding.arena import LocalRows
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.embedding.segments import Seeding
from cpr_trainer.store import Store, in_parallel

#: Rows that are stored at a time: their temporary memory is small compared to a part's.
_CHUNK = 1 << 16


def take_first_values(local: LocalRows, source: TableMapping | int | None) -> None:
    """Give rows that are in no save the first values of the anchor's job, as changes that every save holds.

    source: the mapping of tables; for equal tables the seed of that job; None if only this job's seed is known. Rows
    with the same first values in both jobs stay as they are, and so do rows that start fresh.
    """
    own = local.seeding
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


def load_other_tables(store: Store, mapping: TableMapping, local: LocalRows, found: tuple[Found, ...]) -> None:
    """Load the rows of the mapped tables from the saves of all shards of an anchor, as changes.

    Rows that no save has stay as they are. Raises DamagedError, StoreError.
    """
    kinds = [(table.dim, table.precision) for table in mapping.tables]
    distinct = tuple(dict.fromkeys(kinds))
    rows, bands = [table.rows for table in mapping.tables], [*map(distinct.index, kinds)]
    there = Placement(rows, len(found), bands)
    for index, (manifest, ref) in enumerate(found):
        if manifest.spans != there.spans(index):
            raise DamagedError(ref.key, f"holds places {manifest.spans}, not {there.spans(index)}")
    alone = Placement(rows, 1, bands)
    widths = [0] * len(distinct)
    for band, table in zip(bands, mapping.tables, strict=True):
        widths[band] = max(widths[band], state_width(table.optimizer, table.dim))
    bands_alone = tuple(
        _SavedBand(span, dim, precision, width)
        for span, (dim, precision), width in zip(alone.spans(0), distinct, widths, strict=True)
    )
    targets = _targets(mapping, local.placement.rows_per_table)
    for top in found:
        for save in read_chain(store, top):
            loader = _PartLoader(store, save[0], local, alone, bands_alone, targets)
            in_parallel(loader.load, parts_of(save))
    local.arena.epochs.now = 2


def _targets(mapping: TableMapping, rows: tuple[int, ...]) -> list[Ints]:
    """Return the targets for all copies of each row, in tables of these `rows`.

    Each is int64 [3, T], by table of the anchor: the target table, -1 for none; what is added to a row's place there;
    and the end of the places.
    """
    goals: list[list[tuple[int, int, int]]] = [[] for _ in mapping.tables]
    for table, source in enumerate(mapping.sources):
        if source is not None:
            shifts = range(0, rows[table], source.rows) if source.repeated else (0,)
            goals[source.table] += [(table, shift, rows[table]) for shift in shifts]
    none = (-1, 0, 0)
    copies = range(max((len(each) for each in goals), default=0))
    chosen = ([each[copy] if copy < len(each) else none for each in goals] for copy in copies)
    return [np.array(each, np.int64).T for each in chosen]


class _SavedBand(NamedTuple):
    """A band of an anchor: its places on a single shard, the type of its rows, and the float32 of their state."""

    span: tuple[int, int]
    dim: int
    precision: Precision
    width: int


@dataclass(frozen=True, slots=True, eq=False)
class _PartLoader:
    """Loads parts of one save.

    `alone` is the placement of its tables on a single shard; saves name rows by these places.
    """

    store: Store
    manifest: ShardManifest
    local: LocalRows
    alone: Placement
    bands: tuple[_SavedBand, ...]
    targets: list[Ints]

    def load(self, part: Part) -> None:
        """Load the rows of a part. Raises DamagedError, StoreError."""
        band = next((each for each in self.bands if each.span[0] <= part.first < each.span[1]), None)
        if band is None:
            raise DamagedError(part.key, f"holds place {part.first}, which does not exist")
        dim = band.dim
        shape = Shape.of(part, dim, value_bits(self.manifest.bits, band.precision), state=band.width)
        records = np.empty((shape.rows, record_bytes(dim, shape.bits)), np.uint8)
        state = np.empty((shape.rows, band.width), np.float32)
        places = read_rows(self.store, part, shape, records, state)
        for first, last in pairwise([*range(0, len(places), _CHUNK), len(places)]):
            tables, rows = self.alone.rows_at(places[first:last])
            values = decode_rows(records[first:last], dim, shape.bits)
            for targets in self.targets:
                self._put(targets, tables, rows, values, state[first:last])

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
