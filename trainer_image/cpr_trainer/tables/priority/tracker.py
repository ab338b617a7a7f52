"""What every priority strategy does: watch pushes, choose rows for a save, and forget them once they are saved.

A save goes choose -> mark -> wrote, block by block -> forget. One that fails is simply dropped: nothing was forgotten,
so the next one carries it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpr_trainer.arrays import Floats, Ints
from cpr_trainer.tables.priority.population import Population


@dataclass(slots=True, eq=False)
class Claim:
    """What one save is about to hold. slots: int64 [k], ascending; None for all rows.

    added_updates: row updates that this save holds and none that is committed, known from the mark on; None if the
    strategy does not count them.
    token: what the tracker keeps with it.
    """

    slots: Ints | None
    added_updates: int | None = None
    token: NDArray[Any] | None = None


class Tracker(ABC):
    """The importance of a shard's rows since they were last saved.

    `choose` and `wrote` may run on another thread than the rest, beside `note`: `choose` reads what may change under
    it, so its ranking is as of some moment in between. `forget` must be over before the next `choose` begins.
    """

    def __init__(self, population: Population) -> None:
        self._population = population
        self._marked: Claim | None = None

    @property
    @abstractmethod
    def memory_bytes(self) -> int:
        """Memory that is held all the time; what a save takes besides is small or stated where it is taken."""

    def note(self, slots: Ints) -> None:  # noqa: B027 -- only those that count have something to do
        """Note one push, right after it was applied. slots: int64 [k], all different."""

    @abstractmethod
    def choose(self, count: int) -> Claim:
        """Claim all rows of small tables and the `count` most important others, fewer if fewer changed."""

    def everything(self) -> Claim:
        """Claim all rows: an anchor's claim."""
        return Claim(None)

    def mark(self, claim: Claim) -> None:
        """Note that the content of the claimed rows is fixed now: what is pushed from here on is in no save."""
        self._marked = claim
        self._mark(claim)

    def wrote(self, slots: Ints, rows: Floats, state: Floats) -> None:  # noqa: B027 -- as above
        """Learn the content, as of the mark, of claimed rows of one segment that were written.

        slots: int64 [k]. rows: float32 [k, D]. state: float32 [k, W] of their optimizers.
        """

    def forget(self, claim: Claim) -> None:
        """Note that a marked claim is committed. Raises ValueError unless it is the one marked last, and only once."""
        if claim is not self._marked:
            raise ValueError("only the claim that was marked last can be forgotten, and once")
        self._marked = None
        self._forget(claim)

    def reset(self) -> None:
        """Start anew: the rows as they are now are what is saved."""
        self._marked = None
        self._reset()

    def _claim(self, chosen: Ints) -> Claim:
        """Return the claim of some rows of large tables (int64 [k]) and of all rows of small ones."""
        return Claim(np.union1d(chosen, self._population.small))

    def _mark(self, claim: Claim) -> None:  # noqa: B027 -- as above
        """Do what the strategy has to do at a mark."""

    @abstractmethod
    def _forget(self, claim: Claim) -> None: ...

    @abstractmethod
    def _reset(self) -> None: ...
