"""Route C: where each embedding row lives. Pure arithmetic; no map is kept, and every process computes the same.

The rows of all tables are numbered through, table after table: a row's *number*. An affine permutation turns the
number into a *place* in [0, N), and shard i of S holds the i-th of S equal ranges of places; a row's *slot* in its
shard is its place less the start of the range. The permutation knows nothing of S.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np

from cpr_contract.spec import ModelSpec
from cpr_trainer.arrays import Ints

_ALGORITHM = "affine-1"
_INT64_MAX = 2**63 - 1
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class RowChunk:
    """Consecutive slots of a shard and the rows in them. tables, rows: int64 [n]; slot i is first_slot + i."""

    first_slot: int
    tables: Ints
    rows: Ints


class Placement:
    """The place of every row of tables with `rows_per_table` rows, split over `shards` shards.

    Raises ValueError if there are more shards than rows, or more than 2**43 rows.
    """

    def __init__(self, rows_per_table: Sequence[int], shards: int) -> None:
        self.rows_per_table = tuple(rows_per_table)
        self.shards = shards
        self.total = sum(self.rows_per_table)
        if not 1 <= shards <= self.total:
            raise ValueError(f"{self.total} rows cannot be split over {shards} shards")
        if self.total > 1 << 43:
            raise ValueError(f"{self.total} rows are more than {1 << 43}")
        self.offsets: Ints = np.concatenate(([0], np.cumsum(self.rows_per_table)[:-1])).astype(np.int64)
        self.starts: Ints = np.array([shard * self.total // shards for shard in range(shards + 1)], np.int64)
        self._multiplier = _multiplier(self.total)
        self._shift = self.total // 3

    @classmethod
    def of(cls, model: ModelSpec, shards: int) -> Placement:
        """Return the placement of a model's tables over `shards` shards; raises ValueError as the class does."""
        return cls([table.rows for table in model.tables], shards)

    def size(self, shard: int) -> int:
        """Return the number of rows on a shard; sizes differ by one at most."""
        return int(self.starts[shard + 1] - self.starts[shard])

    def holders(self, shard: int, shards: int) -> range:
        """Return which of `shards` shards, if there were so many, would hold some of this shard's places."""
        first, last = int(self.starts[shard]), int(self.starts[shard + 1]) - 1
        return range(((first + 1) * shards - 1) // self.total, ((last + 1) * shards - 1) // self.total + 1)

    def numbers(self, ids: Ints) -> Ints:
        """Return the row numbers of ids int64 [n, T], the row of each of the T tables; int64 [n, T]."""
        return ids + self.offsets

    def tables_of(self, numbers: Ints) -> tuple[Ints, Ints]:
        """Return the table and the row in it of each row number, int64 of the same shape each."""
        tables = np.searchsorted(self.offsets, numbers, side="right").astype(np.int64) - 1
        return tables, numbers - self.offsets[tables]

    def places(self, numbers: Ints) -> Ints:
        """Return the places of row numbers in [0, N), int64 of the same shape."""
        places = numbers * self._multiplier + self._shift
        # numpy divides by a constant with a product but has no such remainder: twice as fast as `%`.
        places -= places // self.total * self.total
        return places

    def shards_of(self, numbers: Ints) -> Ints:
        """Return the shard of each row number, int64 of the same shape."""
        # The start of shard i is floor(i N / S), so p lies at or after it iff (p + 1) S - 1 >= i N.
        return ((self.places(numbers) + 1) * self.shards - 1) // self.total

    def locate(self, numbers: Ints) -> tuple[Ints, Ints]:
        """Return the shard and the slot of each row number, int64 of the same shape each."""
        shards = self.shards_of(numbers)
        return shards, self.places(numbers) - self.starts[shards]

    def slots_on(self, shard: int, numbers: Ints) -> Ints:
        """Return the slots of row numbers that all lie on `shard`; raises ValueError if one does not."""
        if numbers.size and not (int(numbers.min()) >= 0 and int(numbers.max()) < self.total):
            raise ValueError(f"a row number is outside [0, {self.total})")
        slots: Ints = self.places(numbers) - self.starts[shard]
        if slots.size and not (int(slots.min()) >= 0 and int(slots.max()) < self.size(shard)):
            raise ValueError(f"a row does not lie on shard {shard}")
        return slots

    def rows_of(self, shard: int, chunk: int = _CHUNK) -> Iterator[RowChunk]:
        """Yield the rows of a shard in slot order, at most `chunk` (<= 2**19) at a time."""
        inverse = pow(self._multiplier, -1, self.total)
        for first in range(0, self.size(shard), chunk):
            count = min(chunk, self.size(shard) - first)
            # Along a chunk the number grows by the inverse: products stay small, however many rows there are.
            start = (int(self.starts[shard]) + first - self._shift) * inverse % self.total
            numbers = (start + np.arange(count, dtype=np.int64) * inverse) % self.total
            yield RowChunk(first, *self.tables_of(numbers))


def layout_hash(model: ModelSpec) -> str:
    """Return a hash (hex) of all that says which row lies at which place: a save of another layout is unreadable.

    How many shards there are is not part of it: a save says which places it holds.
    """
    kinds = tuple(optimizer.kind for optimizer in model.table_optimizers)
    layout = {
        "algorithm": _ALGORITHM,
        "tables": [[table.name, table.rows] for table in model.tables],
        "dim": model.embedding_dim,
        "optimizer": kinds[0] if len(set(kinds)) == 1 else kinds,
    }
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
