"""What ranks send a shard again after its restore, in which order, and until when nobody may read its rows.

Each rank promises, before it begins, up to which step it pushes without being asked. Before all have kept their word
rows are as old as the save in part, and a rank that read them would train on what is not there yet.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

#: The promise of a rank that did not say anything yet.
UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class ReplayBarrier:
    """promised[r]: the last step that rank r is about to push, UNKNOWN before it told. Empty once all did."""

    promised: tuple[int, ...] = ()

    @classmethod
    def begun(cls, trainers: int) -> Self:
        """Return the state right after a restore."""
        return cls((UNKNOWN,) * trainers)

    @property
    def over(self) -> bool:
        """Whether every rank has kept its word: rows may be read."""
        return not self.promised

    def replays(self, rank: int, step: int) -> bool:
        """Whether a rank's push of `step` is one that it has promised."""
        return not self.over and step <= self.promised[rank]

    def is_next(self, rank: int, order: int, heads: Mapping[int, int], applied: tuple[int, ...]) -> bool:
        """Whether a rank's push is to be applied now: pushes are in the order in which they were applied before.

        order: its place in that order, 0 if it has none: such pushes come last. heads: the places of the pushes that
        wait, by rank, the first of each. A rank that still owes some, and has none here, may have an earlier one.
        """
        for other, promised in enumerate(self.promised):
            if other == rank or UNKNOWN < promised <= applied[other]:
                continue
            if other not in heads or 0 < heads[other] < (order or math.inf):
                return False
        return True

    def joined(self, rank: int) -> Self:
        """Return the state after a rank came back: it may be another process, which holds less."""
        return self._with(rank, UNKNOWN)

    def told(self, rank: int, step: int) -> Self:
        """Return the state after a rank's promise. The first one counts: later ones are of new steps."""
        if self.over or self.promised[rank] != UNKNOWN:
            return self
        return self._with(rank, step)

    def after(self, applied: tuple[int, ...]) -> Self:
        """Return the state once these steps of each rank are applied."""
        kept = all(UNKNOWN < step <= now for step, now in zip(self.promised, applied, strict=False))
        return replace(self, promised=()) if kept else self

    def _with(self, rank: int, step: int) -> Self:
        if self.over:
            return self
        return replace(self, promised=(*self.promised[:rank], step, *self.promised[rank + 1 :]))
