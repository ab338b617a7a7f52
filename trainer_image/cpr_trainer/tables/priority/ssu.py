"""SSU, sub-sampled used (CPR, section 4.3): rows drawn from every second access, at most as many as a save takes.

At most 4 bytes for each row of a save, and nothing is ranked: a row that is used often is likely to be in the list.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cpr_trainer.arrays import Ints
from cpr_trainer.hashing import scale_to
from cpr_trainer.tables.priority.population import Population
from cpr_trainer.tables.priority.tracker import Claim, Tracker
from cprjob_serving.cpr64 import GOLDEN

#: Entries of a bucket: one bit each of a byte.
_WAYS = 8
_ANY = np.uint8(0xFF)
#: An entry is a slot + 1, and 0 if it is empty. This bit says that it was recorded after the last mark.
_FRESH = 1 << 30
_ENTRY = _FRESH - 1


class SsuTracker(Tracker):
    """Records every second access in a list of different rows; where it is full, a random one makes room.

    The list is a hash table of buckets of 8 entries, in which a row is looked up without an index beside it; "full" is
    said of a bucket. With as many rows recorded as fit in all, 14 % of the entries are still empty.
    Raises ValueError for 2**30 rows or more.
    """

    def __init__(self, population: Population, quota: int, rng: np.random.Generator) -> None:
        if population.rows > _ENTRY:
            raise ValueError(f"SSU can tell {_ENTRY} rows of a shard apart, not {population.rows}: use more shards")
        super().__init__(population)
        self._rng = rng
        # Rows of small tables are recorded too, and left out when rows are chosen: they have room of their own.
        buckets = -(-(quota + len(population.small)) // _WAYS)
        self._table: NDArray[np.int32] = np.zeros((buckets, _WAYS), np.int32)
        self._entries = self._table.reshape(-1)
        self._skipped = 0  # accesses since the last one recorded

    @property
    def memory_bytes(self) -> int:
        """4 bytes for each row of a save."""
        return self._table.nbytes

    def note(self, slots: Ints) -> None:
        """Record every second of these accesses, counted on from push to push."""
        recorded = slots[self._skipped :: 2]
        self._skipped = (self._skipped + len(slots)) % 2
        entries = (recorded + 1).astype(np.int32)
        buckets = scale_to(recorded.view(np.uint64) * GOLDEN, len(self._table)).astype(np.int64)
        found = self._table.take(buckets, axis=0)
        same = np.packbits(found & _ENTRY == entries[:, np.newaxis])
        empty = np.packbits(found == 0)
        # In this order of preference: where the row is already, an empty entry, any.
        fit = np.where(same != 0, same, np.where(empty != 0, empty, _ANY))
        ways = _FIRST[fit, self._rng.integers(_WAYS, size=len(fit), dtype=np.uint8)]
        self._table[buckets, ways] = entries | _FRESH

    def choose(self, count: int) -> Claim:
        """Claim all rows of small tables and those of the list; of more than `count` of these, random ones."""
        entries = self._entries.copy()
        places = np.flatnonzero(entries)
        slots = (entries[places] & _ENTRY).astype(np.int64) - 1
        small = np.isin(slots, self._population.small)
        large = np.flatnonzero(~small)
        if len(large) > count:
            large = self._rng.choice(large, count, replace=False)
        claim = self._claim(slots[large])
        inside = np.concatenate((large, np.flatnonzero(small)))
        claim.token = np.stack((places[inside], slots[inside]))
        return claim

    def _mark(self, claim: Claim) -> None:
        if claim.token is None:
            self._entries &= _ENTRY
            return
        places, slots = claim.token
        there = places[self._entries[places] & _ENTRY == slots + 1]  # not evicted since it was chosen
        self._entries[there] &= _ENTRY
        claim.token = there

    def _forget(self, claim: Claim) -> None:
        if claim.token is None:
            self._entries[self._entries & _FRESH == 0] = 0
        else:
            self._entries[claim.token[self._entries[claim.token] & _FRESH == 0]] = 0

    def _reset(self) -> None:
        self._entries.fill(0)
        self._skipped = 0


def _first_set() -> NDArray[np.uint8]:
    """Return, for each byte and each way to begin at, the first way from there on, in a circle, whose bit is set.

    uint8 [256, 8]. The bit of way 0 is the highest, as `np.packbits` has it.
    """
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, np.newaxis], axis=1)
    turned = np.stack([np.roll(bits, -turn, axis=1) for turn in range(_WAYS)], axis=1)
    first = (turned.argmax(axis=2) + np.arange(_WAYS)) % _WAYS
    return np.asarray(first, np.uint8)


_FIRST = _first_set()
