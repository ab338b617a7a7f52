"""The order of rows that do not fit into memory: whole blocks are shuffled first, then the rows of a window of them.

The blocks of an epoch, in a random order of the units, make a stream. It is cut into even windows of at most
`shuffle_rows` rows, and each window is shuffled within 256 lanes: a lane is a run of the window's stream, and feeds the
same 1/256 of every batch. So a trainer, whose slice of a batch is contiguous, reads the blocks of its own lanes and no
others, however many trainers there are; a batch mixes rows from the whole window.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from cpr_trainer.data.layout import Ints, Layout
from cpr_trainer.data.permutation import permute
from cpr_trainer.hashing import key64
from cprjob_serving.hashes import GOLDEN, mix64

#: As many as there may be trainers. A power of two: a lane and a 56-bit random number make one sort key.
LANES = 256
_LANE_SHIFT = np.uint64(56)
_DOMAIN = 0x57494E44  # Keeps these numbers apart from the order of units, which has the same seed.


class Windows:
    """The order of every epoch over `layout`: a pure function of (seed, sample number).

    `per_epoch` is the number of windows that an epoch is cut into.
    """

    def __init__(self, layout: Layout, shuffle_rows: int, batch_size: int, seed: int) -> None:
        self._layout = layout
        self.per_epoch = -(-layout.rows // shuffle_rows)
        self._batch_size = batch_size
        self._seed = seed
        # The present window, the next, and their epochs: whoever asks goes through them in turn.
        self._stream = lru_cache(2)(self._stream_of)
        self._shuffled = lru_cache(3)(self._shuffle)

    def window_of(self, sample: int) -> int:
        """Return the window of a global sample number; windows are numbered through all epochs."""
        epoch, position = divmod(sample, self._layout.rows)
        window = position * self.per_epoch // self._layout.rows
        # Bounds are rounded down: the quotient may be one window short.
        return epoch * self.per_epoch + window + (position >= self._bound(window + 1))

    def first_sample(self, window: int) -> int:
        """Return the global number of a window's first sample."""
        epoch, number = divmod(window, self.per_epoch)
        return epoch * self._layout.rows + self._bound(number)

    def rows_at(self, samples: range) -> Ints:
        """Return the dataset row of each global sample number of a contiguous range, int64 [len(samples)]."""
        parts, start = [np.empty(0, np.int64)], samples.start
        while start < samples.stop:
            window = self.window_of(start)
            first, stop = self.first_sample(window), min(self.first_sample(window + 1), samples.stop)
            parts.append(self._shuffled(window)[start - first : stop - first])
            start = stop
        return np.concatenate(parts)

    def blocks_of(self, window: int, rank: int, trainers: int) -> Ints:
        """Return the blocks that trainer `rank` of `trainers` reads in a window, in the order of the stream."""
        rows = self._shuffled(window)
        offsets = (self.first_sample(window) + np.arange(len(rows))) % self._batch_size
        start, stop = (bound * self._batch_size // trainers for bound in (rank, rank + 1))
        needed = self._layout.blocks_of(rows[(offsets >= start) & (offsets < stop)])
        order, _ = self._stream(window // self.per_epoch)
        return order[np.isin(order, needed)]

    def _bound(self, window: int) -> int:
        """The position in its epoch at which a window starts."""
        return window * self._layout.rows // self.per_epoch

    def _stream_of(self, epoch: int) -> tuple[Ints, Ints]:
        """The blocks in an epoch's order, int64 [b], and the stream position at which each begins, int64 [b + 1]."""
        units = int(self._layout.units[-1]) + 1
        turn = np.empty(units, np.int64)
        turn[permute(np.arange(units), np.array([epoch]), units, self._seed)] = np.arange(units)
        order = np.argsort(turn[self._layout.units], kind="stable")
        sizes = np.diff(self._layout.starts)[order]
        return order, np.concatenate(([0], np.cumsum(sizes)))

    def _shuffle(self, window: int) -> Ints:
        """The rows of a window in the order of its samples, int64 [n]."""
        epoch, number = divmod(window, self.per_epoch)
        positions = np.arange(self._bound(number), self._bound(number + 1))
        offsets = (epoch * self._layout.rows + positions) % self._batch_size
        lanes = (offsets * LANES // self._batch_size).astype(np.uint64)
        random = mix64(key64(_DOMAIN, self._seed, epoch) + positions.astype(np.uint64) * GOLDEN)
        place_of = np.argsort(lanes << _LANE_SHIFT | random >> np.uint64(8), kind="stable")
        order, starts = self._stream(epoch)
        turns = np.searchsorted(starts, positions, side="right") - 1
        rows = np.empty(len(positions), np.int64)
        rows[place_of] = self._layout.starts[order[turns]] + positions - starts[turns]
        return rows
