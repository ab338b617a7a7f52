"""The pages of dynamic tables, and the places in them that a key may have: integer arithmetic, equal everywhere.

A key is the XXH64 of an id, so its bits are as good as random. A page has 4,096 slots in 128 buckets of 32. The number
of pages depends on the table's rows alone, and a key's page grows with the key. In its page a key has two buckets. Both
are functions of the lower half of the key, the page is one of the upper half.

The pages of all tables of a band stand in one order, and each shard holds a range of it. The order spreads the pages of
each table evenly, and tables of a single page, too: shards have equal parts of the keys, and not only of the slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpr_contract.model import PAGE_SLOTS
from cpr_trainer.arrays import Ints
from cprjob_serving.hashes import U64

U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]

BUCKET_SLOTS = 32
PAGE_BUCKETS = PAGE_SLOTS // BUCKET_SLOTS

_HALF = np.uint64(32)
_LOW_HALF = np.uint64(2**32 - 1)
#: 2**32 over the golden ratio: its multiples modulo 2**32 are spread evenly, however many are taken.
_GOLDEN, _MIDDLE = np.uint64(2_654_435_769), np.uint64(2**31)
#: The fields of a key from its lowest bit: the first bucket, the distance to the second, the tag.
_DISTANCE_AT, _DISTANCE_BITS, _DISTANCES = np.uint64(7), np.uint64(16), np.uint64(2**16 - 1)
_TAG_AT, _TAGS = np.uint64(23), np.uint64(255)


@dataclass(frozen=True, slots=True, eq=False)
class PageOrder:
    """The order of the pages of the tables of a band.

    counts, firsts: int64 [T], the number of pages of each table, and those of all tables before it. places: int64 [P],
    the place of each page, table after table; it grows with the page of a table. tables, numbers: int64 [P], the table
    of the page at each place, and its number in the table.
    """

    counts: Ints
    firsts: Ints
    places: Ints
    tables: Ints
    numbers: Ints

    @classmethod
    def of(cls, rows: Sequence[int]) -> PageOrder:
        """Return the order of the pages of tables with these capacities.

        Page p of the P of table t comes at (p + frac(1/2 + t / golden ratio)) / P of the order.
        """
        counts = -(-np.array(rows, np.int64) // PAGE_SLOTS)
        firsts = np.cumsum(counts) - counts
        tables = np.repeat(np.arange(len(counts)), counts)
        numbers = np.arange(len(tables)) - firsts[tables]
        shifts = _MIDDLE + tables.astype(np.uint64) * _GOLDEN & _LOW_HALF
        at = ((numbers.astype(np.uint64) << _HALF) + shifts) // counts[tables].view(np.uint64)
        by_place = np.argsort(at, kind="stable")
        places = np.empty(len(tables), np.int64)
        places[by_place] = np.arange(len(tables))
        return cls(counts, firsts, places, tables[by_place], numbers[by_place])

    def __len__(self) -> int:
        return len(self.places)

    def start(self, shard: int, shards: int) -> int:
        """Return the place of the first page of a shard; after the last shard, the number of pages."""
        return shard * len(self) // shards

    def find(self, keys: U64, tables: Ints) -> tuple[Ints, U64]:
        """Return the place of the page of each key, int64 [k], and 32 bits of its place in the page, uint64 [k].

        They are the upper and the lower half of floor(key * pages / 2**32). tables: int64 [k], of the keys.
        """
        pages = self.counts[tables].view(np.uint64)
        found = (keys >> _HALF) * pages + ((keys & _LOW_HALF) * pages >> _HALF)
        return self.places[self.firsts[tables] + (found >> _HALF).view(np.int64)], found & _LOW_HALF


@dataclass(frozen=True, slots=True, eq=False)
class BandKeys:
    """Different keys on one shard, of the tables of a band: table after table, and ascending in each.

    keys: uint64 [k]. tables: int64 [k], the place of each key's table in the band. positions: uint64 [k], its page,
    counted from the shard's first, and below it 32 bits of the place in the page.
    """

    keys: U64
    tables: Ints
    positions: U64

    def __len__(self) -> int:
        return len(self.keys)

    def select(self, at: Any) -> BandKeys:
        """Return some of them, in their order."""
        return BandKeys(self.keys[at], self.tables[at], self.positions[at])

    def buckets(self) -> Ints:
        """Return the two buckets of each key, counted from the shard's first page: int64 [2, k], different."""
        keys = self.keys
        distances = ((keys >> _DISTANCE_AT & _DISTANCES) * np.uint64(PAGE_BUCKETS - 1) >> _DISTANCE_BITS) + np.uint64(1)
        inside = np.stack((keys, keys + distances)) & np.uint64(PAGE_BUCKETS - 1)
        inside += (self.positions >> _HALF) * np.uint64(PAGE_BUCKETS)
        return inside.view(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Pages:
    """The pages at the places [first, last) of an order: those of one shard. There may be none."""

    order: PageOrder
    first: int
    last: int

    @classmethod
    def of(cls, *rows: int, shards: int = 1, shard: int = 0) -> Pages:
        """Return the pages of tables with these capacities that shard `shard` of `shards` holds."""
        return cls.on_shard(PageOrder.of(rows), shard, shards)

    @classmethod
    def on_shard(cls, order: PageOrder, shard: int, shards: int) -> Pages:
        """Return the pages that shard `shard` of `shards` holds."""
        return cls(order, order.start(shard, shards), order.start(shard + 1, shards))

    @property
    def slots(self) -> int:
        """The number of slots in these pages; as many cells count the keys that are not admitted yet."""
        return (self.last - self.first) * PAGE_SLOTS

    @property
    def tables(self) -> Ints:
        """The table of each page, int64 [pages]."""
        return self.order.tables[self.first : self.last]

    def locate(self, keys: U64, tables: Ints) -> BandKeys:
        """Return keys with their positions. tables: int64 [k].

        Raises ValueError for a key of another shard, and unless tables ascend, and keys in each table.
        """
        places, inside = self.order.find(keys, tables)
        pages = (places - self.first).view(np.uint64)
        if (pages >= np.uint64(self.last - self.first)).any():
            raise ValueError(f"a key lies outside pages [{self.first}, {self.last})")
        same = tables[1:] == tables[:-1]
        if not np.where(same, keys[1:] > keys[:-1], tables[1:] > tables[:-1]).all():
            raise ValueError("keys are not in ascending order")
        return BandKeys(keys, tables, pages << _HALF | inside)

    def hold(self, table: int, keys: U64) -> NDArray[np.bool_]:
        """Return which keys of a table have their page here, bool [k]. keys: uint64 [k], in any order."""
        places, _ = self.order.find(keys, np.full(len(keys), table))
        return (self.first <= places) & (places < self.last)

    def slots_of(self, table: int, rows: Ints) -> Ints:
        """Return the slot here of each row of a table, int64 [k]; -1 for one on another shard."""
        places = self.order.places[self.order.firsts[table] + rows // PAGE_SLOTS]
        here = (self.first <= places) & (places < self.last)
        return np.where(here, (places - self.first) * PAGE_SLOTS + rows % PAGE_SLOTS, -1)

    def slots_in(self, table: int) -> Ints:
        """Return the slots of a table's pages here, int64 [n, 4096]: a row for each page, in their order."""
        pages = np.flatnonzero(self.tables == table)
        return pages[:, np.newaxis] * PAGE_SLOTS + np.arange(PAGE_SLOTS)


def tags_of(keys: U64) -> U8:
    """Return a byte of each key, uint8 [k], in [1, 255]; 0 is the tag of an empty slot."""
    tags: U8 = np.maximum(keys >> _TAG_AT & _TAGS, np.uint64(1)).astype(np.uint8)
    return tags


def digits_of(keys: U64, tables: Ints, bits: int) -> Ints:
    """Return numbers of `bits` bits, int64 [k], that grow with (table, key), or are equal. tables: int64 [k]."""
    of_tables = int(tables.max(initial=0)).bit_length()
    return tables << bits - of_tables | (keys >> np.uint64(64 - bits + of_tables)).view(np.int64)


def settle(order: Ints, digits: NDArray[np.signedinteger[Any]], keys: U64) -> tuple[Ints, Ints]:
    """Return an order by (table, key) and where in it each different key begins, int64 [u].

    order: int64 [k], by the `digits_of` keys, which `digits` are in this order. Equal keys keep their order.
    """
    names, first = keys[order], first_of_runs(digits)
    starts = first | first_of_runs(names)
    collisions = digits[starts & ~first]
    if len(collisions):
        at = np.flatnonzero(np.isin(digits, collisions))
        order = order.copy()
        order[at] = order[at][np.lexsort((names[at], digits[at]))]
        starts = first | first_of_runs(keys[order])
    return order, np.flatnonzero(starts)


def first_of_runs(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which of some values differ from the one before them, bool [k]; the first does."""
    first = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return first


def capacity_of(rows: int) -> int:
    """Return the slots of a table with a capacity of `rows`: those of whole pages."""
    return -(-rows // PAGE_SLOTS) * PAGE_SLOTS
