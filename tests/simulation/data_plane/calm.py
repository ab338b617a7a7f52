"""A job without failures whose shards merge steps: its rows and its dense state after each step, computed directly."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from cpr_trainer.arrays import Ints, Values
from simulation.data_plane.workload import Workload

#: The dense state before the first step; and one that no member has, because all that had it were lost.
FIRST, UNKNOWN = 0, -1


def digest_of(vectors: Values) -> int:
    """Return a number for the vectors that a rank reads in a step: its part of the dense gradients."""
    return zlib.crc32(vectors.tobytes())


def dense_after(dense: int, digests: Sequence[int]) -> int:
    """Return the dense state after a step: a number that depends on the state before it, and on every rank's part."""
    parts: Ints = np.array((dense, *digests), np.int64)
    return UNKNOWN if dense == UNKNOWN else zlib.crc32(parts.tobytes())


class CalmRun:
    """The states of a calm run, computed up to the step that is asked for."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._dense = [FIRST]
        shards = range(workload.job.shards)
        self._numbers = np.concatenate([workload.numbers_on(shard) for shard in shards])
        self._rows = np.concatenate([workload.first_values(shard) for shard in shards])

    def dense(self, step: int) -> int:
        """Return the dense state after a step."""
        while len(self._dense) <= step:
            self._advance(len(self._dense))
        return self._dense[step]

    def _advance(self, step: int) -> None:
        workload, changes, changed = self._workload, np.zeros_like(self._rows), np.zeros(len(self._rows), np.bool_)
        ranks = range(workload.job.trainers)
        digests = [digest_of(self._rows[workload.requested_rows(rank, step).places]) for rank in ranks]
        self._dense.append(dense_after(self._dense[-1], digests))
        for rank in ranks:
            rows, gradients = workload.push(rank, step)
            changes[rows.places] += gradients
            changed[rows.places] = True
        self._rows[changed] = workload.after(self._rows[changed] - changes[changed], self._numbers[changed], step)
