"""The entries of a dynamic table, one for each slot, and their age and score. The clock is the job's step.

They are the last columns of the state of the table's rows, and cells are the state of rows without values, so saves,
parity, redo records and captures have them as they have the state of an optimizer. An entry is contiguous in memory: a
search reads it at once.

An entry expires by itself: once its last push is older than the rule allows, its slot counts as empty, in lookups and
pushes of the same step alone. A count is halved at every multiple of `halving_steps`, when it is used: the entry holds
it as of its last push.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from cpr_contract.model import DynamicSpec, EvictionScore
from cpr_trainer.arrays import Floats, Ints
from cpr_trainer.embedding.dynamic.pages import BUCKET_SLOTS, U32, first_of_runs
from cprjob_serving.hashes import U64

#: The columns of an entry, and of a cell: float32 that hold the bits of uint32.
ENTRY_COLUMNS, CELL_COLUMNS = 4, 2
#: The columns of an entry together, with a field for each but two for the key; and the same bytes without fields, which
#: numpy copies in a third of the time.
ENTRY = np.dtype([("key", "<u8"), ("step", "<u4"), ("count", "<u4")])
_WHOLE = np.dtype((np.void, ENTRY.itemsize))
#: A count grows no further. A score is at most as large.
MAX_COUNT = 2**32 - 2
_NO_VICTIM = np.uint32(2**32 - 1)
_COUNT_BITS = 32


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of a table. Steps are those of the job; 0 in `ttl_steps` or `halving_steps`: never.

    A key gets a slot at its `min_steps`-th step with a push. Raises ValueError for a rule out of its range.
    """

    score: EvictionScore = "LastStep"
    halving_steps: int = 0
    ttl_steps: int = 0
    min_steps: int = 1

    def __post_init__(self) -> None:
        if self.halving_steps < 0 or self.ttl_steps < 0:
            raise ValueError("a number of steps is negative")
        if not 1 <= self.min_steps <= np.iinfo(np.uint8).max:
            raise ValueError(f"min_steps is {self.min_steps}, and not in [1, 255]")

    @classmethod
    def of(cls, spec: DynamicSpec) -> Self:
        """Return the rules of a table."""
        return cls(spec.score, spec.halving_steps, spec.ttl_steps, spec.min_steps)

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
        return steps if self.score == "LastStep" else self.counts_at(counts, steps, step)


class Entries:
    """Views of the columns of a table's state that hold its entries, by slot.

    keys: uint64 [n]. steps: uint32 [n], of the last push. counts: uint32 [n], steps with a push as of that one. In an
    empty slot both are 0; every number is a key. cells: uint32 [n, 2], see `admission_cells`; of a table that admits at
    the first push [0, 2].
    """

    def __init__(self, state: Floats, cells: Floats | None = None) -> None:
        """View the last columns of state, float32 [n, W], and cells, float32 [n, 2]. Rows are contiguous."""
        self._whole = state[:, -ENTRY_COLUMNS:].view(_WHOLE)[:, 0]
        entries = self._whole.view(ENTRY)
        self.keys: U64 = entries["key"]
        self.steps: U32 = entries["step"]
        self.counts: U32 = entries["count"]
        self.cells: U32 = (state[:0, :CELL_COLUMNS] if cells is None else cells).view(np.uint32)

    def __len__(self) -> int:
        return len(self._whole)

    def take(self, slots: Ints) -> NDArray[np.void]:
        """Return a copy of the entries in some slots, of the type `ENTRY`."""
        return self._whole[slots].view(ENTRY)

    def put(self, slots: Ints, entries: NDArray[np.void]) -> None:
        """Replace the entries in some slots, all different. entries: of the type `ENTRY`."""
        self._whole[slots] = entries.view(_WHOLE)

    def live_bits(self, buckets: Ints, rules: Rules, step: int) -> U32:
        """Return a bit for each slot of some buckets, uint32 [b], that holds an entry of the table at a step."""
        steps, least = self.steps.reshape(-1, BUCKET_SLOTS), rules.oldest_live(step)
        return bits_of(steps[buckets] >= least)

    def victims(self, pairs: Ints, pinned: NDArray[np.bool_], rules: Rules, step: int) -> Ints:
        """Return the place of each key's least entry by (score, key) that is not pinned: see `insertion.Victims`."""
        near = self._whole.reshape(-1, BUCKET_SLOTS)[pairs.T].view(ENTRY).reshape(pinned.shape)
        scores = rules.scores(near["count"], near["step"], step).copy()
        scores[pinned] = _NO_VICTIM
        at = np.flatnonzero(scores == scores.min(axis=1, keepdims=True))
        keys = near["key"].ravel()[at]
        starts = np.flatnonzero(first_of_runs(at // pinned.shape[1]))
        least = np.minimum.reduceat(keys, starts)
        found: Ints = at[keys == np.repeat(least, np.diff(np.append(starts, len(at))))] % pinned.shape[1]
        return found


def newest_of_keys(keys: U64, steps: U32) -> NDArray[np.bool_]:
    """Return a mask of entries, bool [m], without those of a key that has a newer one; of equal ones the last stays.

    An expired entry stays in its slot until another takes it, while its key may have come back to another slot.
    """
    newest = np.ones(len(keys), np.bool_)
    ascending = np.sort(keys)
    repeated = ascending[1:][ascending[1:] == ascending[:-1]]
    if len(repeated):
        at = np.flatnonzero(np.isin(keys, repeated))
        at = at[np.lexsort((steps[at], keys[at]))]
        newest[at[:-1][keys[at[1:]] == keys[at[:-1]]]] = False
    return newest


def bits_of(slots: NDArray[np.bool_]) -> U32:
    """Return a number for each bucket, uint32 [b], with a bit for each of its slots, bool [b, 32]."""
    return np.packbits(slots, bitorder="little").view("<u4")
