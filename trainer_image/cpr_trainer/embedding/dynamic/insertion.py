"""Insertion of keys into buckets, in a stated order, vectorised: the result is that of one insertion after another.

Two insertions depend on each other only if they share a bucket. Among the keys that still wait, all those are
inserted at once that are the first at both of their buckets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpr_trainer.arrays import Ints
from cpr_trainer.embedding.dynamic.pages import BUCKET_SLOTS, U32

_FULL = np.uint32(2**BUCKET_SLOTS - 1)
#: The keys that are looked at together: few enough for the processor's cache, and many for one call of numpy.
_LARGEST_WINDOW = 4096
_SMALLEST_WINDOW = 64

#: Returns the place of each key's victim, int64 [f], among the 64 slots of its buckets, int64 [2, f]. Some of the slots
#: are pinned, bool [f, 64], but never all of a key's.
Victims = Callable[[Ints, NDArray[np.bool_]], Ints]


@dataclass(frozen=True, slots=True, eq=False)
class Insertions:
    """slots: int64 [m], the slot of each key in its order, -1 without. evicts: bool [m], it replaces a live entry.

    full: bool [m], it met two full buckets.
    """

    slots: Ints
    evicts: NDArray[np.bool_]
    full: NDArray[np.bool_]


class Buckets:
    """The buckets that insertions touch: a bit for each slot that is live, and for each that is pinned, uint32 each.

    A pinned slot is live and is not evicted. No bucket has bits before `begin` and after `end`.
    """

    def __init__(self, count: int) -> None:
        self._live: U32 = np.zeros(count, np.uint32)
        self._pinned: U32 = np.zeros(count, np.uint32)
        self._first: Ints = np.empty(count, np.int64)

    def begin(self, buckets: Ints, live: U32, pinned_slots: Ints) -> None:
        """Set the bits of some buckets, int64 [b], which may repeat. live: uint32 [b], the bits of their live slots.

        pinned_slots: int64 [p], of these or other buckets.
        """
        self._live[buckets] = live
        self._pin(pinned_slots)

    def end(self, buckets: Ints, pinned_slots: Ints) -> None:
        """Clear the bits that `begin` and `insert` have set."""
        self._live[buckets] = 0
        self._pinned[buckets] = 0
        self._pinned[pinned_slots // BUCKET_SLOTS] = 0

    def insert(self, pairs: Ints, victims: Victims | None = None) -> Insertions:
        """Insert keys one after another, each into the emptier of its buckets, and into the first of two equal ones.

        pairs: int64 [2, m], the buckets of the keys in their order. A key takes the lowest empty slot of the bucket. If
        both buckets are full it takes the victim's slot. If all slots are pinned it gets none. It is pinned itself.
        victims: None if all live slots are pinned.
        """
        count = pairs.shape[1]
        slots, evicts, full = np.full(count, -1, np.int64), *np.zeros((2, count), np.bool_)
        most = min(max(len(self._live) // 2, _SMALLEST_WINDOW), _LARGEST_WINDOW)
        taken = min(most, count)
        window = np.arange(taken)
        while len(window):
            one, other = pairs.take(window, axis=1)
            # Slots are pinned until the end, so these keys get none whatever precedes them.
            hopeless = self._pinned.take(one) & self._pinned.take(other) == _FULL
            if hopeless.any():
                full[window[hopeless]] = True
                window, one, other = window[~hopeless], one[~hopeless], other[~hopeless]
            places = np.arange(len(window))
            self._first[one] = self._first[other] = len(window)
            np.minimum.at(self._first, one, places)
            np.minimum.at(self._first, other, places)
            ready = (self._first.take(one) == places) & (self._first.take(other) == places)
            now = window[ready]
            slots[now], evicts[now] = self._insert(one[ready], other[ready], victims)
            left = window[~ready]
            more = min(most - len(left), count - taken)
            window = np.concatenate((left, np.arange(taken, taken + more)))
            taken += more
        return Insertions(slots, evicts, full | evicts)

    def _insert(self, one: Ints, other: Ints, victims: Victims | None) -> tuple[Ints, NDArray[np.bool_]]:
        """Insert keys that share no bucket, int64 [r] each; return their slots, and which of them evict an entry."""
        in_one, in_other = self._live.take(one), self._live.take(other)
        second = np.bitwise_count(in_other) < np.bitwise_count(in_one)
        buckets, live = np.where(second, other, one), np.where(second, in_other, in_one)
        lowest = ~live & (live + np.uint32(1))
        slots = buckets * BUCKET_SLOTS + np.bitwise_count(lowest - np.uint32(1))
        full = live == _FULL
        if full.any():
            assert victims is not None, "a full bucket with a slot that may be evicted"
            both = np.stack((one[full], other[full]))
            bits = np.ascontiguousarray(self._pinned.take(both).T).astype("<u4", copy=False)
            pinned = np.unpackbits(bits.view(np.uint8), axis=1, bitorder="little").view(np.bool_)
            in_bucket, at = np.divmod(victims(both, pinned), BUCKET_SLOTS)
            buckets[full] = np.where(in_bucket == 0, both[0], both[1])
            slots[full] = buckets[full] * BUCKET_SLOTS + at
            lowest[full] = np.left_shift(np.uint32(1), at.astype(np.uint32))
        self._live[buckets] |= lowest  # no bucket twice
        self._pinned[buckets] |= lowest
        return slots, full

    def _pin(self, slots: Ints) -> None:
        ones = np.left_shift(np.uint32(1), (slots & (BUCKET_SLOTS - 1)).astype(np.uint32))
        np.bitwise_or.at(self._pinned, slots // BUCKET_SLOTS, ones)
