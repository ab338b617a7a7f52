"""The strategies of priority saving, and their names: which rows matter most."""

from __future__ import annotations

from typing import Literal, assert_never

import numpy as np
from numpy.typing import NDArray

from cpr_trainer.arrays import Floats, Ints
from cpr_trainer.embedding.arena import Arena
from cpr_trainer.embedding.priority.tracker import Claim, Population, Tracker, largest
from cpr_trainer.hashing import scale_to
from cprjob_serving.hashes import GOLDEN

# MFU, most frequently used (CPR, section 4.3): the rows with the most updates since they were last saved.
#
# 4 bytes a row. The counters are the exact account of updates that no save holds, so this strategy alone can tell how
# many a priority save adds.


Counters = NDArray[np.int32]


class MfuTracker(Tracker):
    """Counts updates of each row since it was last saved; at most 2**31 - 1 between two saves.

    While everything is being saved a second counter for each row is held: no counter is copied at the mark.
    """

    def __init__(self, population: Population, rng: np.random.Generator) -> None:
        super().__init__(population)
        self._rng = rng
        self._counters: Counters = np.zeros(population.rows, np.int32)
        self._before: Counters | None = None  # counts up to the mark of a claim of everything, until it is forgotten

    @property
    def memory_bytes(self) -> int:
        """4 bytes a row, 8 while everything is being saved."""
        return self._counters.nbytes + (0 if self._before is None else self._before.nbytes)

    def note(self, slots: Ints) -> None:
        """Count one update of each row."""
        self._counters[slots] += 1

    def choose(self, count: int) -> Claim:
        """Claim the rows with the highest counters."""
        return self._claim(largest(self._population, self._counts, count, self._rng))

    def _counts(self, chunk: slice) -> NDArray[np.float32]:
        """Exact up to 2**24 updates of a row; above that, order is all that counts."""
        counts = self._counters[chunk].astype(np.float32)
        before = self._before  # it may be forgotten meanwhile
        if before is not None:
            counts += before[chunk]
        return counts

    def _mark(self, claim: Claim) -> None:
        if self._before is not None:  # of a save that failed
            self._counters += self._before
            self._before = None
        if claim.slots is None:
            self._before, self._counters = self._counters, np.zeros(len(self._counters), np.int32)
            return
        claim.token = self._counters[claim.slots]
        claim.added_updates = int(claim.token.sum())

    def _forget(self, claim: Claim) -> None:
        if claim.slots is None:
            self._before = None
        elif claim.token is not None:  # set by the mark
            self._counters[claim.slots] -= claim.token

    def _reset(self) -> None:
        self._counters.fill(0)
        self._before = None


# SSU, sub-sampled used (CPR, section 4.3): rows drawn from every second access, at most as many as a save takes.
#
# At most 4 bytes for each row of a save, and nothing is ranked: a row that is used often is likely to be in the list.


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


# SCAR (Qiao et al., ICML 2019): the rows that moved farthest, in L2, since they were last saved.
#
# Needs the rows as they were last saved: as much memory as the rows themselves, and nothing on the way of a push.


class ScarTracker(Tracker):
    """Keeps a copy of each row as last written.

    What a failed save wrote is no longer known as it was saved before: those rows come first in the next save.
    """

    def __init__(self, population: Population, arena: Arena, rng: np.random.Generator) -> None:
        super().__init__(population)
        self._rng = rng
        self._arena = arena
        self._saved = [segment.rows.copy() for segment in arena.segments]
        self._unsure: NDArray[np.bool_] = np.zeros(population.rows, np.bool_)

    @property
    def memory_bytes(self) -> int:
        """The size of the rows, and a byte for each."""
        return sum(rows.nbytes for rows in self._saved) + self._unsure.nbytes

    def choose(self, count: int) -> Claim:
        """Claim the rows that changed most."""
        return self._claim(largest(self._population, self._change, count, self._rng))

    def wrote(self, slots: Ints, rows: Floats, state: Floats) -> None:  # noqa: ARG002 -- rows say it all
        """Keep what was written."""
        self._unsure[slots] = True
        for segment, saved in zip(self._arena.segments, self._saved, strict=True):
            if len(slots) and segment.first <= slots[0] < segment.end:
                saved[segment.within(slots)] = rows

    def _change(self, chunk: slice) -> Floats:
        """Return the squared L2 distance of each row from what is saved of it, float32 [chunk]."""
        change: Floats = np.empty(chunk.stop - chunk.start, np.float32)
        for place, inside, at in self._arena.runs(chunk):
            moved = self._arena.segments[place].rows[inside] - self._saved[place][inside]
            np.einsum("kd,kd->k", moved, moved, out=change[at])
        change[self._unsure[chunk]] = np.inf
        return change

    def _forget(self, claim: Claim) -> None:
        self._unsure[slice(None) if claim.slots is None else claim.slots] = False

    def _reset(self) -> None:
        for segment, saved in zip(self._arena.segments, self._saved, strict=True):
            saved[:] = segment.rows
        self._unsure[:] = False


# Growth: the rows whose accumulator of row-wise Adagrad grew most, by its root, since they were last saved.
#
# The accumulator a sums q = mean(g^2) of a row's updates, and an update moves the row by lr |g| / sqrt(a). The root
# grows by about q / (2 sqrt(a)): by the length of that step, times the size of the gradient. So its growth is an
# account of how far a row went, kept by the optimizer anyway; that of a itself would put hot rows first, which hardly
# move any more. What was saved of it takes 4 bytes a row; a push takes nothing.


class GrowthTracker(Tracker):
    """Keeps each row's accumulator as last saved; twice while a save is being written."""

    def __init__(self, population: Population, arena: Arena, rng: np.random.Generator) -> None:
        super().__init__(population)
        self._rng = rng
        self._arena = arena
        self._saved: Floats = np.empty(population.rows, np.float32)
        self._writing: Floats | None = None
        self._reset()

    @property
    def memory_bytes(self) -> int:
        """4 bytes a row, 8 while a save is being written."""
        return self._saved.nbytes + (0 if self._writing is None else self._writing.nbytes)

    def choose(self, count: int) -> Claim:
        """Claim the rows whose accumulator grew most, by its root."""
        return self._claim(largest(self._population, self._growth, count, self._rng))

    def wrote(self, slots: Ints, rows: Floats, state: Floats) -> None:  # noqa: ARG002 -- state says it all
        """Keep the accumulators that were written, beside those that are saved."""
        if self._writing is None:
            self._writing = self._saved.copy()
        self._writing[slots] = state[:, 0]

    def _growth(self, chunk: slice) -> Floats:
        growth: Floats = np.empty(chunk.stop - chunk.start, np.float32)
        for place, inside, at in self._arena.runs(chunk):
            np.sqrt(self._arena.segments[place].state[inside, 0], out=growth[at])
        growth -= np.sqrt(self._saved[chunk])
        return growth

    def _mark(self, claim: Claim) -> None:  # noqa: ARG002 -- what a failed save wrote is forgotten, whatever comes next
        self._writing = None

    def _forget(self, claim: Claim) -> None:  # noqa: ARG002 -- it is what was written since the mark
        if self._writing is not None:
            self._saved, self._writing = self._writing, None

    def _reset(self) -> None:
        for segment in self._arena.segments:
            self._saved[segment.first : segment.end] = segment.state[:, 0]
        self._writing = None


Strategy = Literal["MFU", "SSU", "SCAR", "Growth"]


def make_tracker(
    strategy: Strategy, arena: Arena, population: Population, quota: int, rng: np.random.Generator
) -> Tracker:
    """Return a new tracker for an arena whose rows, as they are now, are what is saved.

    quota: the most rows of large tables that a save will claim (`Population.quota`). Raises ValueError if the strategy
    does not go with the arena.
    """
    match strategy:
        case "MFU":
            return MfuTracker(population, rng)
        case "SSU":
            return SsuTracker(population, quota, rng)
        case "SCAR":
            return ScarTracker(population, arena, rng)
        case "Growth":
            others = {optimizer.kind for optimizer in arena.optimizers.distinct} - {"RowWiseAdagrad"}
            if others:
                raise ValueError(
                    "snapshots.strategy Growth ranks rows by the accumulator of RowWiseAdagrad, which "
                    f"{', '.join(sorted(others))} does not keep: choose MFU, or RowWiseAdagrad for all tables."
                )
            return GrowthTracker(population, arena, rng)
        case _:
            assert_never(strategy)
