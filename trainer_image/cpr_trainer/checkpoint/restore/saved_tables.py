"""The tables of an anchor in its saves: the places of their rows, and the rows of a part.

All of it follows from the description in the anchor's manifest, so a job of any other tables can read them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from cpr_contract.choices import Precision
from cpr_contract.manifests import Part, SavedTable
from cpr_contract.model import state_width
from cpr_trainer.arrays import Floats, Ints
from cpr_trainer.checkpoint.format.documents import DamagedError, Found, parts_of, read_rows
from cpr_trainer.checkpoint.format.parts import Shape
from cpr_trainer.checkpoint.format.quantise import ValueBits, decode_rows, record_bytes, value_bits
from cpr_trainer.embedding.dynamic.entries import ENTRY_COLUMNS
from cpr_trainer.embedding.dynamic.pages import capacity_of
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.store import Store

#: Rows that are yielded at a time: their temporary memory is small compared to a part's.
_CHUNK = 1 << 16


class SavedBand(NamedTuple):
    """A band of an anchor's tables: its places on a single shard, the type of its rows, and the float32 of their state.

    tables: which they are.
    """

    span: tuple[int, int]
    tables: frozenset[int]
    dim: int
    precision: Precision
    width: int


@dataclass(frozen=True, slots=True, eq=False)
class SavedRows:
    """Some rows of a save. tables, rows: int64 [k], the table of each, and its number there. state: float32 [k, W]."""

    tables: Ints
    rows: Ints
    state: Floats
    records: NDArray[np.uint8]
    dim: int
    bits: ValueBits

    def values(self) -> Floats:
        """Return the vectors, float32 [k, D]."""
        return decode_rows(self.records, self.dim, self.bits)


@dataclass(frozen=True, slots=True, eq=False)
class SavedTables:
    """The tables of an anchor.

    alone: their placement on a single shard; saves name rows by these places. bands: those of tables; the bands of
    cells come after them.
    """

    alone: Placement
    bands: tuple[SavedBand, ...]

    @classmethod
    def of(cls, tables: Sequence[SavedTable], found: Sequence[Found]) -> Self:
        """Return the tables of an anchor with these saves. Raises DamagedError if they are not of all its shards."""
        kinds = [(each.dim, each.precision, each.band) for each in tables]
        distinct = tuple(dict.fromkeys(kinds))
        of_table = [*map(distinct.index, kinds)]
        rows = [capacity_of(each.rows) if each.is_dynamic else each.rows for each in tables]
        dynamic = [place for place, each in enumerate(tables) if each.is_dynamic]
        counted = [place for place in dynamic if tables[place].counted]
        there = Placement(rows, len(found), of_table, dynamic=dynamic, counted=counted)
        for index, (manifest, ref) in enumerate(found):
            if manifest.spans != there.spans(index):
                raise DamagedError(ref.key, f"holds places {manifest.spans}, not {there.spans(index)}")
        alone = Placement(rows, 1, of_table, dynamic=dynamic, counted=counted)
        bands = []
        for number, (dim, precision, dynamic_band) in enumerate(distinct):
            members = frozenset(place for place, band in enumerate(of_table) if band == number)
            width = max(state_width(tables[place].optimizer, dim) for place in members)
            entry = 0 if dynamic_band is None else ENTRY_COLUMNS
            bands.append(SavedBand(alone.spans(0)[number], members, dim, precision, width + entry))
        return cls(alone, tuple(bands))

    def parts(self, save: Found, tables: Collection[int]) -> Iterator[SavedPart]:
        """Yield the parts of a save that may have rows of some tables. Raises DamagedError."""
        for part in parts_of(save):
            if not 0 <= part.first < self.alone.total:
                raise DamagedError(part.key, f"holds place {part.first}, which does not exist")
            for band in self.bands:
                if band.span[0] <= part.first < band.span[1] and not band.tables.isdisjoint(tables):
                    yield SavedPart(part, band, value_bits(save[0].bits, band.precision), self.alone)


@dataclass(frozen=True, slots=True, eq=False)
class SavedPart:
    """A part of a save with values of `bits` bits. placement: see `SavedTables.alone`."""

    part: Part
    band: SavedBand
    bits: ValueBits
    placement: Placement

    def read(self, store: Store) -> Iterator[SavedRows]:
        """Yield the rows of the part, some at a time. Raises DamagedError, StoreError."""
        dim, width = self.band.dim, self.band.width
        shape = Shape.of(self.part, dim, self.bits, state=width)
        records = np.empty((shape.rows, record_bytes(dim, self.bits)), np.uint8)
        state = np.empty((shape.rows, width), np.float32)
        places = read_rows(store, self.part, shape, records, state)
        for first, last in pairwise([*range(0, len(places), _CHUNK), len(places)]):
            tables, rows = self.placement.rows_at(places[first:last])
            yield SavedRows(tables, rows, state[first:last], records[first:last], dim, self.bits)
