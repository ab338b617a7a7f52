"""The strategies of priority saving, and their names."""

from __future__ import annotations

from typing import Literal, assert_never

import numpy as np
from numpy.typing import NDArray

from cpr_trainer.arrays import Floats, Ints, Values
from cpr_trainer.embedding.arena import Arena
from cpr_trainer.embedding.bfloat16 import as_floats
from cpr_trainer.embedding.priority.tracker import Claim, Population, Tracker, largest
from cpr_trainer.hashing import scale_to
from cprjob_serving.hashes import GOLDEN

Counters = NDArray[np.int32]
Strategy = Literal["MFU", "SSU", "SCAR", "Growth"]

#: SSU: entries of a bucket: one bit each of a byte.
_WAYS = 8
_ANY = np.uint8(0xFF)
#: SSU: an entry is a slot + 1, and 0 if it is empty. This bit marks entries recorded after the last mark.
_FRESH = 1 << 30
_ENTRY = _FRESH - 1


class MfuTracker(Tracker):
    """MFU, most frequently used (CPR, section 4.3): the rows with the most updates since they were last saved.

    Each row has a counter, at most 2**31 - 1 between two saves. The counters are exact for the updates that no save
    holds, so only this strategy counts the updates that a priority save adds. While everything is being saved each row
    has a second counter, so none is copied at the mark.
    """

    def __init__(self, population: Population, rng: np.random.Generator) -> None:
        super().__init__(population, rng)
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
        before = self._before  # another thread may drop it meanwhile
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


class SsuTracker(Tracker):
    """SSU, sub-sampled used (CPR, section 4.3): rows of every second access, at most as many as a save takes.

    Nothing is ranked: a row that is used often is likely to be in the list. The list is a hash table of buckets of 8
    entries, so no index is needed; in a full bucket a random entry is replaced. After as many recorded rows as entries,
    14 % of the entries are still empty. Raises ValueError for 2**30 rows or more.
    """

    def __init__(self, population: Population, quota: int, rng: np.random.Generator) -> None:
        if population.rows > _ENTRY:
            raise ValueError(f"SSU can number {_ENTRY} rows of a shard, not {population.rows}: use more shards")
        super().__init__(population, rng)
        # Rows of small tables are recorded too, in additional entries, and left out when rows are chosen.
        buckets = -(-(quota + len(population.small)) // _WAYS)
        self._table: NDArray[np.int32] = np.zeros((buckets, _WAYS), np.int32)
        self._entries = self._table.reshape(-1)
        self._skipped = 0  # accesses since the last one recorded

    @property
    def memory_bytes(self) -> int:
        """4 bytes for each row of a save."""
        return self._table.nbytes

    def note(self, slots: Ints) -> None:
        """Record every second access, also across pushes."""
        recorded = slots[self._skipped :: 2]
        self._skipped = (self._skipped + len(slots)) % 2
        entries = (recorded + 1).astype(np.int32)
        buckets = scale_to(recorded.view(np.uint64) * GOLDEN, len(self._table)).astype(np.int64)
        found = self._table.take(buckets, axis=0)
        same = np.packbits(found & _ENTRY == entries[:, np.newaxis])
        empty = np.packbits(found == 0)
        # In this order of preference: the row's entry, an empty entry, any entry.
        fit = np.where(same != 0, same, np.where(empty != 0, empty, _ANY))
        ways = _FIRST[fit, self._rng.integers(_WAYS, size=len(fit), dtype=np.uint8)]
        self._table[buckets, ways] = entries | _FRESH

    def choose(self, count: int) -> Claim:
        """Claim all rows of small tables and at most `count` rows of the list, chosen at random."""
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
    """Return, for each byte and each first way, the next way with a set bit, cyclically, uint8 [256, 8].

    The bit of way 0 is the highest, as in `np.packbits`.
    """
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, np.newaxis], axis=1)
    turned = np.stack([np.roll(bits, -way, axis=1) for way in range(_WAYS)], axis=1)
    first = (turned.argmax(axis=2) + np.arange(_WAYS)) % _WAYS
    return np.asarray(first, np.uint8)


_FIRST = _first_set()


class ScarTracker(Tracker):
    """SCAR (Qiao et al., ICML 2019): the rows that moved farthest, in L2, since they were last saved.

    It keeps a copy of each row as last written, and costs a push nothing. The earlier copies of rows that a failed save
    wrote are lost, so those rows come first in the next save.
    """

    def __init__(self, population: Population, arena: Arena, rng: np.random.Generator) -> None:
        super().__init__(population, rng)
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

    def wrote(self, slots: Ints, rows: Values, state: Floats) -> None:  # noqa: ARG002 -- only rows are needed
        """Keep what was written."""
        self._unsure[slots] = True
        for segment, saved in zip(self._arena.segments, self._saved, strict=True):
            if len(slots) and segment.first <= slots[0] < segment.end:
                saved[segment.within(slots)] = rows

    def _change(self, chunk: slice) -> Floats:
        """Return the squared L2 distance of each row from its saved copy, float32 [chunk]."""
        change: Floats = np.empty(chunk.stop - chunk.start, np.float32)
        for place, inside, at in self._arena.runs(chunk):
            moved = self._arena.segments[place].read(inside) - as_floats(self._saved[place][inside])
            np.einsum("kd,kd->k", moved, moved, out=change[at])
        change[self._unsure[chunk]] = np.inf
        return change

    def _forget(self, claim: Claim) -> None:
        self._unsure[slice(None) if claim.slots is None else claim.slots] = False

    def _reset(self) -> None:
        for segment, saved in zip(self._arena.segments, self._saved, strict=True):
            saved[:] = segment.rows
        self._unsure[:] = False


class GrowthTracker(Tracker):
    """Growth: the rows with the most growth of the root of row-wise Adagrad's accumulator since they were last saved.

    The accumulator a sums q = mean(g^2) of a row's updates, and an update moves the row by lr |g| / sqrt(a). The root
    grows by about q / (2 sqrt(a)): by the length of that step, times the size of the gradient. Its growth measures the
    distance that a row moved, and the optimizer keeps it anyway. The growth of a itself would prefer hot rows, which
    hardly move any more. A push costs nothing; each row's saved accumulator is kept, twice while a save is written.
    """

    def __init__(self, population: Population, arena: Arena, rng: np.random.Generator) -> None:
        super().__init__(population, rng)
        self._arena = arena
        self._saved: Floats = np.empty(population.rows, np.float32)
        self._writing: Floats | None = None
        self._reset()

    @property
    def memory_bytes(self) -> int:
        """4 bytes a row, 8 while a save is being written."""
        return self._saved.nbytes + (0 if self._writing is None else self._writing.nbytes)

    def choose(self, count: int) -> Claim:
        """Claim the rows with the most growth of the accumulator's root."""
        return self._claim(largest(self._population, self._growth, count, self._rng))

    def wrote(self, slots: Ints, rows: Values, state: Floats) -> None:  # noqa: ARG002 -- only the state is needed
        """Keep the accumulators that were written, in addition to the saved ones."""
        if self._writing is None:
            self._writing = self._saved.copy()
        self._writing[slots] = state[:, 0]

    def _growth(self, chunk: slice) -> Floats:
        growth: Floats = np.empty(chunk.stop - chunk.start, np.float32)
        for place, inside, at in self._arena.runs(chunk):
            np.sqrt(self._arena.segments[place].state[inside, 0], out=growth[at])
        growth -= np.sqrt(self._saved[chunk])
        return growth

    def _mark(self, claim: Claim) -> None:  # noqa: ARG002 -- the data of a failed save is dropped for any claim
        self._writing = None

    def _forget(self, claim: Claim) -> None:  # noqa: ARG002 -- the rows written since the mark are its rows
        if self._writing is not None:
            self._saved, self._writing = self._writing, None

    def _reset(self) -> None:
        for segment in self._arena.segments:
            self._saved[segment.first : segment.end] = segment.state[:, 0]
        self._writing = None


def make_tracker(
    strategy: Strategy, arena: Arena, population: Population, quota: int, rng: np.random.Generator
) -> Tracker:
    """Return a new tracker for an arena; all of its rows count as saved now.

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
