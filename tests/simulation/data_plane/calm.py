"""A job without failures whose shards merge steps: its rows and its dense state after each step, computed directly."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from cpr_trainer.arrays import Floats, Ints, Values
from cpr_trainer.embedding.unique_rows import UniqueRows
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
        self._numbers = np.arange(workload.static_rows)
        self._rows = workload.seeding.values(*workload.placement.tables_of(self._numbers))

    def dense(self, step: int) -> int:
        """Return the dense state after a step."""
        while len(self._dense) <= step:
            self._advance(len(self._dense))
        return self._dense[step]

    def _advance(self, step: int) -> None:
        workload, changes, changed = self._workload, np.zeros_like(self._rows), np.zeros(len(self._rows), np.bool_)
        ranks = range(workload.job.trainers)
        digests = [digest_of(self._read(workload.requested_rows(rank, step), step)) for rank in ranks]
        self._dense.append(dense_after(self._dense[-1], digests))
        for rank in ranks:
            rows, gradients = workload.push(rank, step)
            for shard in range(workload.job.shards):
                part = workload.static_part(rows, shard)
                changes[rows.numbers[part]] += gradients[part]
                changed[rows.numbers[part]] = True
        self._rows[changed] = workload.after(self._rows[changed] - changes[changed], self._numbers[changed], step)

    def _read(self, rows: UniqueRows, step: int) -> Floats:
        """Return the vectors of rows for a step, float32 [u, D]."""
        workload, found = self._workload, np.empty((len(rows), self._rows.shape[1]), np.float32)
        for shard in range(workload.job.shards):
            part = workload.static_part(rows, shard)
            found[part] = self._rows[rows.numbers[part]]
            if (table := workload.expected_table) is not None:
                part, state = workload.key_part(rows, shard), table.after(shard, step - 1, ())
                found[part] = table.vectors(state, rows.numbers[part].view(np.uint64), step)
        return found
