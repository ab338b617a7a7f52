"""The order of samples: a pure function of (seed, step).

Steps count from 1; after step t, min(t * batch_size, total_samples) samples are trained. The stream of samples repeats
the rows epoch after epoch, each epoch in its own order: over all rows if they fit into `shuffle_rows`, otherwise by
`Windows`. With a `shuffle_rows` of 0 each epoch has the order of the rows. Trainer r of W takes an even, contiguous
slice of each batch: the batch itself does not depend on W.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from math import isqrt
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cpr_contract.spec import DataSpec, samples_at, steps_in
from cpr_trainer.arrays import Ints
from cpr_trainer.data.dataset import Layout, window_rows
from cpr_trainer.hashing import key64, scale_to
from cprjob_serving.hashes import GOLDEN, U64, mix64

#: The maximum number of trainers. A power of two: a lane and a 56-bit random number make one sort key.
LANES = 256
_LANE_SHIFT = np.uint64(56)
_DOMAIN = 0x57494E44  # Separates the random numbers of windows from those of units, which have the same seed.
#: One for each round. With six, the orders of five rows are not yet equally likely; from a dozen rows on four do.
_ROUND_KEYS = np.arange(8, dtype=np.uint64) * GOLDEN


class Order(Protocol):
    """The order of a job's samples: a pure function of what is known of its data. See `BatchOrder` for each method."""

    @property
    def batch_size(self) -> int:
        """Sample numbers of a whole batch."""

    @property
    def total_samples(self) -> int:
        """Sample numbers of the job, `OPEN_TOTAL` if its end is unknown."""

    @property
    def steps(self) -> int:
        """The last known step."""

    def slice_of(self, step: int, rank: int = 0, trainers: int = 1) -> range:
        """Return the sample numbers that a trainer trains in a step."""

    def indices_of(self, samples: range) -> Ints:
        """Return the dataset rows of a contiguous range of sample numbers."""

    def real_samples(self, step: int) -> int:
        """Return the number of samples of the whole batch of a step, by which its loss is divided."""

    def window_at(self, sample: int) -> WindowPlace | None:
        """Return the window that is read ahead with a sample."""


@dataclass(frozen=True, slots=True)
class BatchOrder:
    """The order of `total_samples` samples over a dataset of `rows` rows, `batch_size` samples a step.

    Unless it is `shuffled`, each epoch has the order of the rows.
    """

    rows: int
    total_samples: int
    batch_size: int
    seed: int
    windows: Windows | None = None
    shuffled: bool = True

    @classmethod
    def of(cls, data: DataSpec, layout: Layout) -> BatchOrder:
        """Return the order of a dataset under `data`, for a number of samples or of whole epochs.

        It leaves held-out rows out. Raises ValueError if `data` states neither.
        """
        rows = held_out(data, layout.rows).start
        total = data.samples if data.epochs is None else data.epochs * rows
        if total is None:
            raise ValueError("data states neither samples nor epochs")
        windows = windows_of(data, layout, rows)
        return cls(rows, total, data.batch_size, data.seed, windows, data.shuffle_rows > 0)

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
        start, stop = (samples_at(each, self.batch_size, self.total_samples) for each in (step - 1, step))
        return part_of(range(start, stop), rank, trainers)

    def indices_of(self, samples: range) -> Ints:
        """Return the dataset rows of a contiguous range of global sample numbers, int64 [len(samples)]."""
        if self.windows is not None:
            return self.windows.rows_at(samples)
        numbers = np.arange(samples.start, samples.stop, dtype=np.int64)
        epochs, positions = np.divmod(numbers, self.rows)
        if not self.shuffled:
            return positions
        if numbers.size and epochs[0] == epochs[-1]:
            epochs = epochs[:1]
        return permute(positions, epochs, self.rows, self.seed)

    def real_samples(self, step: int) -> int:
        """Return the number of samples of the whole batch of `step`."""
        return len(self.slice_of(step))

    def window_at(self, sample: int) -> WindowPlace | None:
        """Return the window of a global sample number, None if the rows are not read by windows."""
        if self.windows is None:
            return None
        return WindowPlace(self.windows, self.windows.window_of(sample), self.total_samples)

    def batch_indices(self, step: int) -> Ints:
        """Return the dataset rows of the whole batch of `step`, int64 [n]."""
        return self.indices_of(self.slice_of(step))


@dataclass(frozen=True, slots=True)
class WindowPlace:
    """A window of `windows`, which end at their sample number `stop`. Two places are equal if their windows are.

    Its blocks are those of the dataset from `first_block` on.
    """

    windows: Windows = field(compare=False)
    window: int
    stop: int = field(compare=False)
    first_block: int = 0

    def blocks_to_prefetch(self, rank: int, trainers: int) -> Ints:
        """Return the dataset's blocks that a trainer reads in this window and the next, in this order."""
        upcoming = [each for each in (self.window, self.window + 1) if self.windows.first_sample(each) < self.stop]
        blocks = [self.windows.blocks_of(each, rank, trainers) for each in upcoming]
        return np.concatenate([np.empty(0, np.int64), *blocks]) + self.first_block


def windows_of(data: DataSpec, layout: Layout, rows: int, shift: int = 0) -> Windows | None:
    """Return the windows over the first rows of a layout, None if they fit into one. For `shift` see `Windows`."""
    size = window_rows(data)
    if layout.blocks == 1 or rows <= size:
        return None
    return Windows(layout.first(rows), size, data.batch_size, data.seed, shift, shuffled=data.shuffle_rows > 0)


def part_of(batch: range, rank: int, trainers: int) -> range:
    """Return the sample numbers of a batch that one of `trainers` trains: an even, contiguous part; may be empty."""
    size = len(batch)
    return range(batch.start + rank * size // trainers, batch.start + (rank + 1) * size // trainers)


def held_out(data: DataSpec, rows: int) -> range:
    """Return the held-out range of a dataset of `rows` rows: the last ones, the newest of a time-ordered log.

    At least one row is trained.
    """
    return range(rows - min(int(rows * data.hold_out), rows - 1), rows)


class Windows:
    """The order of every epoch over a `layout` that does not fit into memory: a pure function of (seed, sample number).

    The blocks of an epoch, in a random order of the units, make a stream. The stream is cut into even windows of at
    most `shuffle_rows` rows, `per_epoch` of them, and each window is shuffled within 256 lanes: a lane is a run of the
    window's stream, and feeds the same 1/256 of every batch. A trainer, with its contiguous slice of a batch, reads
    the blocks of its own lanes only, with any number of trainers; a batch mixes rows of the whole window.

    Unless it is `shuffled`, the stream has the order of the rows, and windows are only read ahead. `shift` is the
    sample number of the job at which these windows have their number 0; batches are the job's.
    """

    def __init__(  # noqa: PLR0913 -- the layout, and the order
        self, layout: Layout, shuffle_rows: int, batch_size: int, seed: int, shift: int = 0, *, shuffled: bool = True
    ) -> None:
        self._layout = layout
        self._is_shuffled = shuffled
        self.per_epoch = -(-layout.rows // shuffle_rows)
        self._batch_size = batch_size
        self._seed = seed
        self._shift = shift
        # The current window, the next, and their epochs: callers read them one after the other.
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
        offsets = (self._shift + self.first_sample(window) + np.arange(len(rows))) % self._batch_size
        start, stop = (bound * self._batch_size // trainers for bound in (rank, rank + 1))
        needed = self._layout.blocks_of(rows[(offsets >= start) & (offsets < stop)])
        order, _ = self._stream(window // self.per_epoch)
        return order[np.isin(order, needed)]

    def _bound(self, window: int) -> int:
        """Return the position in its epoch at which a window starts."""
        return window * self._layout.rows // self.per_epoch

    def _stream_of(self, epoch: int) -> tuple[Ints, Ints]:
        """Return the blocks in an epoch's order, int64 [b], and the position at which each starts, int64 [b + 1]."""
        if not self._is_shuffled:
            return np.arange(self._layout.blocks), self._layout.starts
        units = int(self._layout.units[-1]) + 1
        rank = np.empty(units, np.int64)
        rank[permute(np.arange(units), np.array([epoch]), units, self._seed)] = np.arange(units)
        order = np.argsort(rank[self._layout.units], kind="stable")
        sizes = np.diff(self._layout.starts)[order]
        return order, np.concatenate(([0], np.cumsum(sizes)))

    def _shuffle(self, window: int) -> Ints:
        """Return the rows of a window in the order of its samples, int64 [n]."""
        epoch, number = divmod(window, self.per_epoch)
        positions = np.arange(self._bound(number), self._bound(number + 1))
        if not self._is_shuffled:
            return positions
        offsets = (epoch * self._layout.rows + positions) % self._batch_size
        lanes = (offsets * LANES // self._batch_size).astype(np.uint64)
        random = mix64(key64(_DOMAIN, self._seed, epoch) + positions.astype(np.uint64) * GOLDEN)
        place_of = np.argsort(lanes << _LANE_SHIFT | random >> np.uint64(8), kind="stable")
        order, starts = self._stream(epoch)
        blocks = np.searchsorted(starts, positions, side="right") - 1
        rows = np.empty(len(positions), np.int64)
        rows[place_of] = self._layout.starts[order[blocks]] + positions - starts[blocks]
        return rows


def permute(positions: NDArray[np.int64], epochs: NDArray[np.int64], rows: int, seed: int) -> NDArray[np.int64]:
    """Return the row at each position of its epoch's permutation, int64 [n].

    positions: int64 [n], in [0, rows). epochs: int64 [n], or [1] for all. rows: in [1, 2**62].
    For one epoch and seed, distinct positions give distinct rows.

    Each position is computed on its own: a shuffled index array would need 8 bytes a row on each trainer, and ties the
    order to one library's generator. A Feistel network on a rectangle (Black and Rogaway, "Ciphers with arbitrary
    finite domains", 2002, section 5) is one to one by construction, and the same on every machine.
    """
    keys = mix64(key64(seed) ^ (epochs.astype(np.uint64) + np.uint64(1)) * GOLDEN)
    result = _permute_rectangle(positions.astype(np.uint64), keys, rows)
    # The rectangle may be larger than `rows` by less than its side. A value outside the rows is mapped again until it
    # is inside (cycle walking), which keeps the map one to one.
    while (outside := np.flatnonzero(result >= np.uint64(rows))).size:
        result[outside] = _permute_rectangle(result[outside], keys if keys.size == 1 else keys[outside], rows)
    return result.astype(np.int64)


def _permute_rectangle(values: U64, keys: U64, rows: int) -> U64:
    """Map [0, height * width) one to one on itself: the smallest near-square rectangle that holds `rows`."""
    height = isqrt(rows - 1) + 1
    width = -(-rows // height)
    left, right = np.divmod(values, np.uint64(width))
    for number, round_key in enumerate(_ROUND_KEYS):
        key = mix64(keys + round_key)
        if number % 2 == 0:
            left = _add_modulo(left, scale_to(mix64(right ^ key), height), height)
        else:
            right = _add_modulo(right, scale_to(mix64(left ^ key), width), width)
    return left * np.uint64(width) + right


def _add_modulo(values: U64, offsets: U64, bound: int) -> U64:
    total = values + offsets
    return np.where(total >= np.uint64(bound), total - np.uint64(bound), total)
