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
