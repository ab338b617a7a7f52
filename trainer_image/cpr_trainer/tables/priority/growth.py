"""Growth: the rows whose accumulator of row-wise Adagrad grew most, by its root, since they were last saved.

The accumulator a sums q = mean(g^2) of a row's updates, and an update moves the row by lr |g| / sqrt(a). The root grows
by about q / (2 sqrt(a)): by the length of that step, times the size of the gradient. So its growth is an account of how
far a row went, kept by the optimizer anyway; that of a itself would put hot rows first, which hardly move any more.
What was saved of it takes 4 bytes a row; a push takes nothing.
"""

from __future__ import annotations

import numpy as np

from cpr_trainer.arrays import Floats, Ints
from cpr_trainer.tables.arena import Arena
from cpr_trainer.tables.priority.population import Population
from cpr_trainer.tables.priority.ranking import largest
from cpr_trainer.tables.priority.tracker import Claim, Tracker


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
