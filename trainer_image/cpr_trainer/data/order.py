"""Which rows a step trains: a pure function of (seed, step).

Steps count from 1; after step t, min(t * batch_size, total_samples) samples are trained. The stream of samples goes
round the rows epoch after epoch, each in an order of its own. Trainer r of W takes an even, contiguous slice of each
batch: the batch itself knows nothing of W.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpr_contract.spec import DataSpec, samples_at, steps_in
from cpr_trainer.data.permutation import permute


@dataclass(frozen=True, slots=True)
class BatchOrder:
    """The order of `total_samples` samples over a dataset of `rows` rows, `batch_size` samples a step."""

    rows: int
    total_samples: int
    batch_size: int
    seed: int

    @classmethod
    def of(cls, data: DataSpec, rows: int) -> BatchOrder:
        """Return the order that `data` asks for over `rows` rows: a number of samples, or of whole epochs.

        Raises ValueError if it states neither.
        """
        if data.samples is not None:
            return cls(rows, data.samples, data.batch_size, data.seed)
        if data.epochs is not None:
            return cls(rows, data.epochs * rows, data.batch_size, data.seed)
        raise ValueError("data states neither samples nor epochs")

    @property
    def steps(self) -> int:
        """The last step."""
        return steps_in(self.total_samples, self.batch_size)

    def slice_of(self, step: int, rank: int = 0, trainers: int = 1) -> range:
        """Return the global sample numbers (from 0) that trainer `rank` of `trainers` trains in `step`; may be empty.

        Raises ValueError for a step outside [1, steps] or a rank outside [0, trainers).
        """
        if not 1 <= step <= self.steps:
            raise ValueError(f"step {step} is outside 1..{self.steps}")
        if not 0 <= rank < trainers:
            raise ValueError(f"rank {rank} is outside 0..{trainers - 1}")
        start = samples_at(step - 1, self.batch_size, self.total_samples)
        size = samples_at(step, self.batch_size, self.total_samples) - start
        return range(start + rank * size // trainers, start + (rank + 1) * size // trainers)

    def indices_of(self, samples: range) -> NDArray[np.int64]:
        """Return the dataset rows of a contiguous range of global sample numbers, int64 [len(samples)]."""
        numbers = np.arange(samples.start, samples.stop, dtype=np.int64)
        epochs, positions = np.divmod(numbers, self.rows)
        if numbers.size and epochs[0] == epochs[-1]:
            epochs = epochs[:1]
        return permute(positions, epochs, self.rows, self.seed)

    def batch_indices(self, step: int) -> NDArray[np.int64]:
        """Return the dataset rows of the whole batch of `step`, int64 [n]."""
        return self.indices_of(self.slice_of(step))
