"""SCAR (Qiao et al., ICML 2019): the rows that moved farthest, in L2, since they were last saved.

Needs the rows as they were last saved: as much memory as the rows themselves, and nothing on the way of a push.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cpr_trainer.arrays import Floats, Ints
from cpr_trainer.tables.arena import Arena
from cpr_trainer.tables.priority.population import Population
from cpr_trainer.tables.priority.ranking import largest
from cpr_trainer.tables.priority.tracker import Claim, Tracker


class ScarTracker(Tracker):
    """Keeps a copy of each row as last written.

    What a failed save wrote is no longer known as it was saved before: those rows come first in the next save.
    """

    def __init__(self, population: Population, arena: Arena, rng: np.random.Generator) -> None:
        super().__init__(population)
        self._rng = rng
        self._rows = arena.rows
        self._saved = arena.rows.copy()
        self._unsure: NDArray[np.bool_] = np.zeros(population.rows, np.bool_)

    @property
    def memory_bytes(self) -> int:
        """The size of the rows, and a byte for each."""
        return self._saved.nbytes + self._unsure.nbytes

    def choose(self, count: int) -> Claim:
        """Claim the rows that changed most."""
        return self._claim(largest(self._population, self._change, count, self._rng))

    def wrote(self, slots: Ints, rows: Floats, state: Floats) -> None:  # noqa: ARG002 -- rows say it all
        """Keep what was written."""
        self._unsure[slots] = True
        self._saved[slots] = rows

    def _change(self, chunk: slice) -> Floats:
        """Return the squared L2 distance of each row from what is saved of it, float32 [chunk]."""
        moved = self._rows[chunk] - self._saved[chunk]
        change: Floats = np.einsum("kd,kd->k", moved, moved)
        change[self._unsure[chunk]] = np.inf
        return change

    def _forget(self, claim: Claim) -> None:
        self._unsure[slice(None) if claim.slots is None else claim.slots] = False

    def _reset(self) -> None:
        self._saved[:] = self._rows
        self._unsure[:] = False
