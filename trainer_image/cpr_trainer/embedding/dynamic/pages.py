"""The pages of a dynamic table, and the places in them that a key may have: integer arithmetic, equal everywhere.

A key is the XXH64 of an id, so its bits are as good as random. A page has 4,096 slots in 128 buckets of 32. The number
of pages depends on the table's rows alone, and a key's page grows with the key: ascending keys are grouped by page, and
by shard. In its page a key has two buckets. Both are functions of the lower half of the key, the page is one of the
upper half.
"""

from __future__ import annotations

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
#: The fields of a key from its lowest bit: the first bucket, the distance to the second, the tag.
_DISTANCE_AT, _DISTANCE_BITS, _DISTANCES = np.uint64(7), np.uint64(16), np.uint64(2**16 - 1)
_TAG_AT, _TAGS = np.uint64(23), np.uint64(255)


@dataclass(frozen=True, slots=True)
class Pages:
    """Pages [first, last) of a table with `total` pages: those of one shard. There may be none."""

    total: int
    first: int
    last: int

    @classmethod
    def of(cls, rows: int, shards: int = 1, shard: int = 0) -> Pages:
        """Return the pages of a table with a capacity of `rows` that shard `shard` of `shards` holds."""
        total = -(-rows // PAGE_SLOTS)
        return cls(total, shard * total // shards, (shard + 1) * total // shards)

    @property
    def slots(self) -> int:
        """The number of slots in these pages; as many cells count the keys that are not admitted yet."""
        return (self.last - self.first) * PAGE_SLOTS

    def positions(self, keys: U64) -> U64:
        """Return floor(key * pages / 2**32), uint64 [k]: the page, and below it 32 bits of the place in the page.

        keys: uint64 [k], ascending. Raises ValueError if one is of another page than these.
        """
        pages = np.uint64(self.total)
        found = (keys >> _HALF) * pages + ((keys & _LOW_HALF) * pages >> _HALF)
        if len(found) and not self.first <= int(found[0]) >> 32 <= int(found[-1]) >> 32 < self.last:
            raise ValueError(f"a key lies outside pages [{self.first}, {self.last})")
        return found

    def buckets(self, keys: U64, positions: U64) -> Ints:
        """Return the two buckets of each key, counted from the first page: int64 [2, k], different for each key.

        positions: uint64 [k], those of the keys.
        """
        distances = ((keys >> _DISTANCE_AT & _DISTANCES) * np.uint64(PAGE_BUCKETS - 1) >> _DISTANCE_BITS) + np.uint64(1)
        inside = np.stack((keys, keys + distances)) & np.uint64(PAGE_BUCKETS - 1)
        inside += ((positions >> _HALF) - np.uint64(self.first)) * np.uint64(PAGE_BUCKETS)
        return inside.view(np.int64)


def tags_of(keys: U64) -> U8:
    """Return a byte of each key, uint8 [k], in [1, 255]; 0 is the tag of an empty slot."""
    tags: U8 = np.maximum(keys >> _TAG_AT & _TAGS, np.uint64(1)).astype(np.uint8)
    return tags


def first_of_runs(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which of some values differ from the one before them, bool [k]; the first does."""
    first = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return first
