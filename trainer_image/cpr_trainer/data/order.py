"""Which rows a step trains: a pure function of (seed, step).

Steps count from 1; after step t, min(t * batch_size, total_samples) samples are trained. The stream of samples goes
round the rows epoch after epoch, each in an order of its own: over all rows where they fit into a window of
`shuffle_rows`, else by `windows`. Trainer r of W takes an even, contiguous slice of each batch: the batch itself knows
nothing of W.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cpr_contract.spec import DataSpec, samples_at, steps_in
from cpr_trainer.data.layout import Ints, Layout
from cpr_trainer.data.permutation import permute
from cpr_trainer.data.windows import Windows


@dataclass(frozen=True, slots=True)
class BatchOrder:
    """The order of `total_samples` samples over a dataset of `rows` rows, `batch_size` samples a step."""

    rows: int
    total_samples: int
    batch_size: int
    seed: int
    windows: Windows | None = None

    @classmethod
    def of(cls, data: DataSpec, layout: Layout) -> BatchOrder:
        """Return the order that `data` asks for over a dataset: a number of samples, or of whole epochs.

        Rows that are held out are never in it. Raises ValueError if `data` states neither.
        """
        rows = held_out(data, layout.rows).start
        total = data.samples if data.epochs is None else data.epochs * rows
        if total is None:
            raise ValueError("data states neither samples nor epochs")
        windows = None
        if layout.blocks > 1 and rows > data.shuffle_rows:
            windows = Windows(layout.first(rows), data.shuffle_rows, data.batch_size, data.seed)
        return cls(rows, total, data.batch_size, data.seed, windows)

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

    def indices_of(self, samples: range) -> Ints:
        """Return the dataset rows of a contiguous range of global sample numbers, int64 [len(samples)]."""
        if self.windows is not None:
            return self.windows.rows_at(samples)
        numbers = np.arange(samples.start, samples.stop, dtype=np.int64)
        epochs, positions = np.divmod(numbers, self.rows)
        if numbers.size and epochs[0] == epochs[-1]:
            epochs = epochs[:1]
        return permute(positions, epochs, self.rows, self.seed)

    def batch_indices(self, step: int) -> Ints:
        """Return the dataset rows of the whole batch of `step`, int64 [n]."""
        return self.indices_of(self.slice_of(step))


def held_out(data: DataSpec, rows: int) -> range:
    """Return the rows, of so many, that are scored and never trained: the last, which logs in order of time make new.

    One row at least is trained.
    """
    return range(rows - min(int(rows * data.hold_out), rows - 1), rows)
