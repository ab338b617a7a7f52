"""The entries of a dynamic table, one for each slot, and their age and score. The clock is the job's step.

An entry expires by itself: once its last push is older than the rule allows, its slot counts as empty, in lookups and
pushes of the same step alone. A count is halved at every multiple of `halving_steps`, when it is used: the entry holds
it as of its last push.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from cpr_trainer.arrays import Ints
from cpr_trainer.embedding.dynamic.pages import BUCKET_SLOTS, U32, first_of_runs
from cpr_trainer.embedding.memory import Memory
from cprjob_serving.hashes import U64

#: A count grows no further. A score is at most as large.
MAX_COUNT = 2**32 - 2
_NO_VICTIM = np.uint32(2**32 - 1)
_COUNT_BITS = 32
#: The buckets that are read together: few enough for the processor's cache.
_BUCKETS_AT_ONCE = 4096


class Score(enum.Enum):
    """The measure by which entries are evicted, the least first."""

    LAST_STEP = "LastStep"
    PUSHES = "Pushes"


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of a table. Steps are those of the job; 0 in `ttl_steps` or `halving_steps`: never.

    A key gets a slot at its `min_steps`-th step with a push. Raises ValueError for a rule out of its range.
    """

    score: Score = Score.LAST_STEP
    halving_steps: int = 0
    ttl_steps: int = 0
    min_steps: int = 1

    def __post_init__(self) -> None:
        if self.halving_steps < 0 or self.ttl_steps < 0:
            raise ValueError("a number of steps is negative")
        if not 1 <= self.min_steps <= np.iinfo(np.uint8).max:
            raise ValueError(f"min_steps is {self.min_steps}, and not in [1, 255]")

    def oldest_live(self, step: int) -> int:
        """Return the least step of a last push with which an entry is in the table at a step. It is above 0."""
        return max(1, step - self.ttl_steps) if self.ttl_steps else 1

    def counts_at(self, counts: U32, steps: U32, step: int) -> U32:
        """Return counts, which are as of `steps`, as of `step`."""
        if not self.halving_steps:
            return counts
        halvings = np.uint32(step // self.halving_steps) - steps // np.uint32(self.halving_steps)
        # A shift by 32 bits or more is undefined for 32 bits.
        halved: U32 = (counts.astype(np.uint64) >> np.minimum(halvings, _COUNT_BITS)).astype(np.uint32)
        return halved

    def scores(self, counts: U32, steps: U32, step: int) -> U32:
        """Return the scores of entries at a step."""
        return steps if self.score is Score.LAST_STEP else self.counts_at(counts, steps, step)


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """The columns of a table's band that hold its entries, by slot.

    keys: uint64 [n]. steps: uint32 [n], of the last push. counts: uint32 [n], steps with a push as of that one. In
    an empty slot both are 0; every number is a key. cells: uint64 [n], see `admission`; of a table that admits at the
    first push uint64 [0].
    """

    keys: U64
    steps: U32
    counts: U32
    cells: U64

    @classmethod
    def empty(cls, slots: int, rules: Rules, memory: Memory) -> Self:
        """Return the columns of empty slots, if `memory` is new."""
        keys, steps, counts = (memory.array((slots,), each) for each in (np.uint64, np.uint32, np.uint32))
        return cls(keys, steps, counts, memory.array((slots if rules.min_steps > 1 else 0,), np.uint64))

    def live_bits(self, buckets: Ints, rules: Rules, step: int) -> U32:
        """Return a bit for each slot of some buckets, uint32 [b], that holds an entry of the table at a step."""
        steps, least = self.steps.reshape(-1, BUCKET_SLOTS), rules.oldest_live(step)
        bits = np.empty(len(buckets), "<u4")
        for first in range(0, len(buckets), _BUCKETS_AT_ONCE):
            part = slice(first, first + _BUCKETS_AT_ONCE)
            live = steps.take(buckets[part], axis=0) >= least
            bits[part] = np.packbits(live.ravel(), bitorder="little").view("<u4")
        return bits

    def victims(self, pairs: Ints, pinned: NDArray[np.bool_], rules: Rules, step: int) -> Ints:
        """Return the place of each key's least entry by (score, key) that is not pinned: see `insertion.Victims`."""
        near = (column.reshape(-1, BUCKET_SLOTS) for column in (self.counts, self.steps))
        counts, steps = (each.take(pairs.T, axis=0).reshape(pinned.shape) for each in near)
        scores = rules.scores(counts, steps, step)
        scores[pinned] = _NO_VICTIM
        at = np.flatnonzero(scores == scores.min(axis=1, keepdims=True))
        keys = self.keys[pairs.T.ravel()[at // BUCKET_SLOTS] * BUCKET_SLOTS + at % BUCKET_SLOTS]
        starts = np.flatnonzero(first_of_runs(at // pinned.shape[1]))
        least = np.minimum.reduceat(keys, starts)
        found: Ints = at[keys == np.repeat(least, np.diff(np.append(starts, len(at))))] % pinned.shape[1]
        return found

    def copy_run(self, source: Entries, here: slice, there: slice) -> None:
        """Copy a run of slots from other columns, bit for bit: those of whole pages (`Pages.shared_with`)."""
        self.keys[here] = source.keys[there]
        self.steps[here] = source.steps[there]
        self.counts[here] = source.counts[there]
        if len(self.cells):
            self.cells[here] = source.cells[there]
