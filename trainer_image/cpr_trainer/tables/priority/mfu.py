"""MFU, most frequently used (CPR, section 4.3): the rows with the most updates since they were last saved.

4 bytes a row. The counters are the exact account of updates that no save holds, so this strategy alone can tell how
many a priority save adds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cpr_trainer.arrays import Ints
from cpr_trainer.tables.priority.population import Population
from cpr_trainer.tables.priority.ranking import largest
from cpr_trainer.tables.priority.tracker import Claim, Tracker

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
