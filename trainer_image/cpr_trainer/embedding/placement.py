"""The placement of embedding rows on shards. Pure arithmetic without a map: every process computes the same.

The rows of all tables are numbered consecutively, table after table: a row's *number*. Tables of one dim and
precision form a *band*; mostly there is only one. In each band an affine permutation turns the number into a *rank*,
and shard i of S holds the i-th of S equal ranges of each band's ranks, one band after the other. A row's *slot* is its
position in its shard, its *place* in [0, N) that position after all earlier shards. With one band, places are ranks,
and do not depend on S. Saves name rows by their places on a single shard (`Placement.spans`), so any number of shards
can read them.

Dynamic tables (ADR 46) of one dim, precision, optimizer and set of rules form a band of whole pages. Its slots belong
to keys for a time, so a process that does not hold it only computes a key's shard. The cells of tables that count keys
follow as further bands: they have as many slots, and no vectors. All bands of tables come first.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any, ClassVar, Self

import numpy as np

from cpr_contract.model import PAGE_SLOTS, ModelSpec
from cpr_trainer.arrays import Ints
from cpr_trainer.embedding.dynamic.pages import PageOrder, Pages, capacity_of
from cprjob_serving.hashes import U64

_ALGORITHM = "affine-1"
_INT64_MAX = 2**63 - 1
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class RowChunk:
    """Consecutive slots of a shard and the rows in them. tables, rows: int64 [n]; slot i is first_slot + i.

    All rows are of one band. In that of dynamic tables, and of their cells, a row is the number of a slot of the table.
    """

    band: int
    first_slot: int
    tables: Ints
    rows: Ints


@dataclass(frozen=True, slots=True, eq=False)
class _Band:
    """The tables of one band. tables: int64 [t], which they are. offsets: int64 [t], the rows of the band before each.

    starts: int64 [S + 1], the first rank of each shard, and `rows` at the end.
    """

    unit: ClassVar[int] = 1

    tables: Ints
    offsets: Ints
    rows: int
    multiplier: int
    shift: int
    starts: Ints

    @classmethod
    def of(cls, tables: Sequence[int], rows_per_table: Sequence[int], shards: int) -> Self:
        """Return the band of these tables."""
        ends = np.cumsum([rows_per_table[table] for table in tables], dtype=np.int64)
        rows = int(ends[-1])
        return cls(
            np.array(tables, np.int64),
            np.concatenate(([0], ends[:-1])).astype(np.int64),
            rows,
            _multiplier(rows),
            rows // 3,
            np.array([shard * rows // shards for shard in range(shards + 1)], np.int64),
        )

    def chunks(self, shard: int, chunk: int) -> Iterator[tuple[Ints, Ints]]:
        """Yield the tables and the rows in them of a shard's ranks, in their order."""
        inverse = self._inverse
        for first in range(int(self.starts[shard]), int(self.starts[shard + 1]), chunk):
            count = min(chunk, int(self.starts[shard + 1]) - first)
            # Along a chunk the number grows by the inverse: products stay small, however many rows there are.
            start = (first - self.shift) * inverse % self.rows
            numbers = (start + np.arange(count, dtype=np.int64) * inverse) % self.rows
            found = np.searchsorted(self.offsets, numbers, side="right") - 1
            yield self.tables[found], numbers - self.offsets[found]

    def rows_at(self, ranks: Ints) -> tuple[Ints, Ints]:
        """Return the table and the row in it of each rank, int64 of the same shape each."""
        values, inverse = ranks - self.shift + (ranks < self.shift) * self.rows, self._inverse
        numbers = np.zeros_like(values)
        # Their product with the inverse, 15 bits of the values at a time: int64 holds products below 2**43 * 2**15.
        for shift in (30, 15, 0):
            numbers = ((numbers << 15) + ((values >> shift) & 0x7FFF) * inverse) % self.rows
        found = np.searchsorted(self.offsets, numbers, side="right") - 1
        return self.tables[found], numbers - self.offsets[found]

    @property
    def _inverse(self) -> int:
        """The product of a number with the multiplier and this is the number again, modulo `rows`."""
        return pow(self.multiplier, -1, self.rows)


@dataclass(frozen=True, slots=True, eq=False)
class _PageBand:
    """The pages of the dynamic tables of one band, or their cells: its ranks are slots, page after page of `order`.

    tables, starts: see `_Band`. Shards hold whole runs of `unit` ranks.
    """

    unit: ClassVar[int] = PAGE_SLOTS
    tables: Ints
    order: PageOrder
    starts: Ints

    @classmethod
    def of(cls, tables: Sequence[int], rows_per_table: Sequence[int], shards: int) -> Self:
        """Return the band of these tables."""
        order = PageOrder.of([rows_per_table[table] for table in tables])
        starts = [order.start(shard, shards) * PAGE_SLOTS for shard in range(shards + 1)]
        return cls(np.array(tables, np.int64), order, np.array(starts, np.int64))

    @property
    def rows(self) -> int:
        """The number of slots."""
        return len(self.order) * PAGE_SLOTS

    def chunks(self, shard: int, chunk: int) -> Iterator[tuple[Ints, Ints]]:
        """See `_Band`."""
        for first in range(int(self.starts[shard]), int(self.starts[shard + 1]), chunk):
            yield self.rows_at(np.arange(first, min(first + chunk, int(self.starts[shard + 1]))))

    def rows_at(self, ranks: Ints) -> tuple[Ints, Ints]:
        """See `_Band`."""
        pages, slots = np.divmod(ranks, PAGE_SLOTS)
        return self.tables[self.order.tables[pages]], self.order.numbers[pages] * PAGE_SLOTS + slots


class Placement:
    """The place of every row of tables with `rows_per_table` rows, split over `shards` shards.

    bands: of each table its band, counted from 0; None if there is one. dynamic: the dynamic tables, whose rows are
    slots in whole pages; no band has tables of both kinds. counted: those of them with cells: all of a band, or none.
    `cells` are the first places of each band on each shard, shard after shard, and N at the end: int64 [S B + 1];
    `starts` those of each shard, int64 [S + 1]. Raises ValueError if a shard would be without rows, or for more than
    2**43 rows.
    """

    def __init__(
        self,
        rows_per_table: Sequence[int],
        shards: int,
        bands: Sequence[int] | None = None,
        *,
        dynamic: Collection[int] = (),
        counted: Sequence[int] = (),
    ) -> None:
        self.rows_per_table = tuple(rows_per_table)
        self.shards = shards
        self.total = sum(self.rows_per_table) + sum(self.rows_per_table[table] for table in counted)
        if not 1 <= shards <= self.total:
            raise ValueError(f"{self.total} rows cannot be split over {shards} shards")
        if self.total > 1 << 43:
            raise ValueError(f"{self.total} rows are more than {1 << 43}")
        self.offsets: Ints = np.concatenate(([0], np.cumsum(self.rows_per_table)[:-1])).astype(np.int64)
        self.band_of: Ints = np.array(bands or [0] * len(self.rows_per_table), np.int64)
        members = [np.flatnonzero(self.band_of == band).tolist() for band in range(int(self.band_of.max()) + 1)]
        self._bands: tuple[_Band | _PageBand, ...] = tuple(
            (_PageBand if tables[0] in dynamic else _Band).of(tables, self.rows_per_table, shards) for tables in members
        )
        self._counted = tuple(dict.fromkeys(self.band_of[[*counted]].tolist()))
        self._bands += tuple(self._bands[band] for band in self._counted)
        self.table_bands = len(members)
        sizes = np.stack([np.diff(band.starts) for band in self._bands], axis=1)
        self.cells: Ints = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
        self.starts: Ints = self.cells[:: self.bands]
        if not np.diff(self.starts).all():
            raise ValueError(f"{self.total} rows in {self.bands} bands cannot be split over {shards} shards")
        # The terms from a static row's number to its rank, by table and by band; and from a rank to its place, by cell.
        first_ranks, factors = self.offsets.copy(), list[tuple[int, int, int]]()
        for band in self._bands:
            if isinstance(band, _Band):
                first_ranks[band.tables] = band.offsets
                factors.append((band.multiplier, band.shift, band.rows))
            else:
                factors.append((1, 0, 1))
        self._into_band: Ints = first_ranks - self.offsets
        self._factors: Ints = np.array(factors, np.int64)
        self._into_cell: Ints = self.cells[:-1] - np.stack([band.starts[:-1] for band in self._bands], axis=1).ravel()

    @classmethod
    def of(cls, model: ModelSpec, shards: int) -> Placement:
        """Return the placement of a model's tables over `shards` shards; raises ValueError as the class does."""
        rows = [table.rows if table.dynamic is None else capacity_of(table.rows) for table in model.tables]
        return cls(rows, shards, model.bands, dynamic=model.dynamic_tables, counted=counted_tables(model))

    @property
    def bands(self) -> int:
        """The number of bands there are, with those of cells."""
        return len(self._bands)

    def pages(self, band: int, shard: int) -> Pages:
        """Return the pages of a band of dynamic tables on a shard."""
        return Pages.on_shard(self._page_band(band).order, shard, self.shards)

    def cell_band(self, band: int) -> int | None:
        """Return the band of the cells of a band of dynamic tables; None if these count no keys."""
        return self.table_bands + self._counted.index(band) if band in self._counted else None

    def is_dynamic(self, band: int) -> bool:
        """Return whether a band is of dynamic tables, or of cells."""
        return isinstance(self._bands[band], _PageBand)

    def tables_in(self, band: int) -> int:
        """Return the number of tables of a band."""
        return len(self._bands[band].tables)

    def places_in_band(self, band: int, tables: Ints) -> Ints:
        """Return the place of each table among those of its band, int64 [t]."""
        return np.searchsorted(self._bands[band].tables, tables)

    def _page_band(self, band: int) -> _PageBand:
        found = self._bands[band]
        assert isinstance(found, _PageBand), "a band of dynamic tables"
        return found

    def size(self, shard: int) -> int:
        """Return the number of rows on a shard; sizes differ by one at most in each band."""
        return int(self.starts[shard + 1] - self.starts[shard])

    def sizes(self, shard: int) -> tuple[int, ...]:
        """Return the number of rows of each band on a shard; 0 may be among them."""
        first = shard * self.bands
        return tuple(np.diff(self.cells[first : first + self.bands + 1]).tolist())

    def spans(self, shard: int) -> tuple[tuple[int, int], ...]:
        """Return, for each band, the first and the last place + 1 that a shard's rows have on one shard alone."""
        before = np.cumsum([0, *(band.rows for band in self._bands)]).tolist()
        ranges = (band.starts[shard : shard + 2].tolist() for band in self._bands)
        return tuple((base + first, base + last) for base, (first, last) in zip(before, ranges, strict=False))

    def holders(self, shard: int, shards: int) -> range:
        """Return which of `shards` shards, in a placement over that number, hold some of this shard's rows.

        With several bands, one at the edge may hold none.
        """
        found: list[int] = []
        for band in self._bands:
            first, last = (int(start) // band.unit for start in band.starts[shard : shard + 2])
            units = band.rows // band.unit
            if first < last:
                found += (((first + 1) * shards - 1) // units, (last * shards - 1) // units)
        return range(min(found), max(found) + 1)

    def tables_of(self, numbers: Ints) -> tuple[Ints, Ints]:
        """Return the table and the row in it of each row number, int64 of the same shape each."""
        tables = np.searchsorted(self.offsets, numbers, side="right").astype(np.int64) - 1
        return tables, numbers - self.offsets[tables]

    def places(self, numbers: Ints) -> Ints:
        """Return the places of row numbers in [0, N), int64 of the same shape; none is of a dynamic table."""
        if self.bands == 1 and isinstance(band := self._bands[0], _Band):
            places = numbers * band.multiplier + band.shift
            # numpy divides by a constant with a product but has no such remainder: twice as fast as `%`.
            places -= places // self.total * self.total
            return places
        tables = np.searchsorted(self.offsets, numbers, side="right") - 1
        bands = self.band_of[tables]
        multipliers, shifts, rows = self._factors.T[:, bands]
        ranks = ((numbers + self._into_band[tables]) * multipliers + shifts) % rows
        # The start of shard i is floor(i N / S), so a rank r lies at or after it iff (r + 1) S - 1 >= i N.
        shards = ((ranks + 1) * self.shards - 1) // rows
        return np.asarray(ranks + self._into_cell[shards * self.bands + bands])

    def shards_of_keys(self, band: int, keys: U64, tables: Ints) -> Ints:
        """Return the shard of each key of dynamic tables, int64 [k]. tables: int64 [k], their places in the band."""
        order = self._page_band(band).order
        places, _ = order.find(keys, tables)
        return ((places + 1) * self.shards - 1) // len(order)  # see `places`

    def rows_at(self, places: Ints) -> tuple[Ints, Ints]:
        """Return the table and the row in it at each place, int64 of the same shape each. There is one shard."""
        tables, rows = np.empty_like(places), np.empty_like(places)
        for (first, last), band in zip(self.spans(0), self._bands, strict=True):
            mine = (first <= places) & (places < last)
            tables[mine], rows[mine] = band.rows_at(places[mine] - first)
        return tables, rows

    def locate(self, numbers: Ints) -> tuple[Ints, Ints]:
        """Return the shard and the slot of each row number, int64 of the same shape each."""
        places = self.places(numbers)
        if self.bands == 1:
            shards = ((places + 1) * self.shards - 1) // self.total
        else:
            shards = np.searchsorted(self.starts, places, side="right") - 1
        return shards, places - self.starts[shards]

    def slots_on(self, shard: int, numbers: Ints) -> Ints:
        """Return the slots of row numbers that all lie on `shard`; raises ValueError if one does not."""
        if not numbers.size:  # as in each frame of a job whose tables are all dynamic
            return numbers
        if not (int(numbers.min()) >= 0 and int(numbers.max()) < self.total):
            raise ValueError(f"a row number is outside [0, {self.total})")
        slots: Ints = self.places(numbers) - self.starts[shard]
        if not (int(slots.min()) >= 0 and int(slots.max()) < self.size(shard)):
            raise ValueError(f"a row does not lie on shard {shard}")
        return slots

    def rows_of(self, shard: int, chunk: int = _CHUNK) -> Iterator[RowChunk]:
        """Yield the rows of a shard in slot order, at most `chunk` (<= 2**19) at a time."""
        first = 0
        for place, band in enumerate(self._bands):
            for tables, rows in band.chunks(shard, chunk):
                yield RowChunk(place, first, tables, rows)
                first += len(rows)


def counted_tables(model: ModelSpec) -> tuple[int, ...]:
    """Return the dynamic tables that count keys before they admit them, as indices: they have cells."""
    rules = ((place, table.dynamic) for place, table in enumerate(model.tables))
    return tuple(place for place, each in rules if each is not None and each.min_steps > 1)


def layout_hash(model: ModelSpec) -> str:
    """Return a hash (hex) of all that determines the places and sizes of rows: a save of another layout is unreadable.

    It does not depend on the number of shards, because a save names its places.
    """
    kinds = tuple(optimizer.kind for optimizer in model.table_optimizers)
    layout: dict[str, Any] = {
        "algorithm": _ALGORITHM,
        "tables": [[table.name, table.rows] for table in model.tables],
        "dim": model.dims[0] if len(model.dims) == 1 else model.table_dims,
        "optimizer": kinds[0] if len(set(kinds)) == 1 else kinds,
    }
    if "bf16" in model.table_precisions:
        layout["precision"] = model.table_precisions
    if model.dynamic_tables:
        layout["dynamic"] = [[table, model.bands[table]] for table in model.dynamic_tables]
        layout["counted"] = counted_tables(model)
    return hashlib.sha256(json.dumps(layout, sort_keys=True).encode()).hexdigest()


def _multiplier(total: int) -> int:
    """A number coprime to `total` near total / golden ratio, smaller where products would leave int64.

    Multiples of the golden ratio modulo 1 are spread evenly, however many are taken (the three-distance theorem):
    so are the neighbouring rows of a table's hot head.
    """
    candidate = max(1, min(total * 618_033_989 // 1_000_000_000, _INT64_MAX // total - 1))
    while gcd(candidate, total) != 1:
        candidate -= 1
    return candidate
