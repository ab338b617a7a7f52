"""The order of samples of data that arrives: segments, one after the other, each in an order of its own.

A segment is never changed, and later ones change no earlier number. Two processes with the segments of a step therefore
train the same rows in it, however many later segments one of them has.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace

import numpy as np

from cpr_contract.spec import OPEN_TOTAL, DataSpec
from cpr_trainer.arrays import Ints
from cpr_trainer.data.dataset import Layout
from cpr_trainer.data.order import BatchOrder, WindowPlace, held_out, part_of, windows_of


@dataclass(frozen=True, slots=True)
class Segment:
    """Sample numbers from `first_sample`: those of the rows of `order`, then `voids` without a row.

    The dataset has these rows from `first_row` on, and their blocks from `first_block`. The segment's number takes the
    place of the epoch in its order, so `order` has its rows at the numbers from `number * order.rows` on. It is None if
    there is no row.
    """

    number: int
    first_sample: int
    first_row: int
    first_block: int
    order: BatchOrder | None
    voids: int

    @property
    def rows(self) -> int:
        """Number of its rows that are trained."""
        return 0 if self.order is None else self.order.rows

    @property
    def stop(self) -> int:
        """The sample number after its last one."""
        return self.first_sample + self.rows + self.voids

    def real(self, samples: range) -> range:
        """Return the part of a range of sample numbers that are rows of this segment; may be empty."""
        start = max(samples.start, self.first_sample)
        return range(start, max(start, min(samples.stop, self.first_sample + self.rows)))

    def rows_at(self, samples: range) -> Ints:
        """Return the dataset rows of sample numbers that are all rows of this segment, int64 [len(samples)]."""
        assert self.order is not None, "a segment without rows has no sample"
        shift = _shift(self.number, self.first_sample, self.rows)
        return self.order.indices_of(range(samples.start - shift, samples.stop - shift)) + self.first_row

    def window_at(self, sample: int) -> WindowPlace | None:
        """Return the window of a sample number of one of its rows, None if it is not read by windows."""
        if self.order is None or self.order.windows is None:
            return None
        windows = self.order.windows
        window = windows.window_of(sample - _shift(self.number, self.first_sample, self.rows))
        return WindowPlace(windows, window, (self.number + 1) * self.rows, self.first_block)


@dataclass(frozen=True, slots=True)
class StreamOrder:
    """The order of a job that follows its data, as far as its segments are known; `has_ended` once the last one is.

    The numbers of `segments` are consecutive, and their sample numbers and rows as well. The first may be a later one
    than the job's: no earlier step is requested then. Only whole batches are trained. If the job may end, the last one
    is trained once a later pin is known: the end then has a step to train, and the cut of that step becomes the model.
    `rows` and `blocks` are those of the dataset that the segments name, held-out rows included.
    """

    data: DataSpec
    segments: tuple[Segment, ...] = ()
    rows: int = 0
    blocks: int = 0
    has_ended: bool = False

    def followed_by(self, layout: Layout | None, voids: int = 0, *, first: tuple[int, int] = (0, 0)) -> StreamOrder:
        """Return the order with one more segment: rows of this layout, and then voids.

        `data.hold_out` of the rows of the job's first segment are held out. first: the number and the first sample
        number of the segment, if it is the first one known.
        """
        assert not self.has_ended, "no segment follows the last one"
        number, sample = first
        if self.segments:
            number, sample = self.segments[-1].number + 1, self.segments[-1].stop
        rows = 0 if layout is None else layout.rows if number else held_out(self.data, layout.rows).start
        order, data = None, self.data
        if layout is not None:
            windows = windows_of(data, layout, rows, _shift(number, sample, rows))
            total = (number + 1) * rows
            order = BatchOrder(rows, total, data.batch_size, data.seed, windows, data.shuffle_rows > 0)
        segment = Segment(number, sample, self.rows, self.blocks, order, voids)
        new_rows, new_blocks = (0, 0) if layout is None else (layout.rows, layout.blocks)
        return replace(
            self, segments=(*self.segments, segment), rows=self.rows + new_rows, blocks=self.blocks + new_blocks
        )

    def since(self, number: int) -> StreamOrder:
        """Return the order without the segments before this number; the others keep their rows and blocks."""
        return replace(self, segments=tuple(segment for segment in self.segments if segment.number >= number))

    def ended(self) -> StreamOrder:
        """Return the order with no further segment. Raises ValueError if the last batch is not whole."""
        if self.known_samples % self.batch_size:
            raise ValueError(f"{self.known_samples} samples are no whole batches of {self.batch_size}")
        return replace(self, has_ended=True)

    @property
    def batch_size(self) -> int:
        """Sample numbers of each step."""
        return self.data.batch_size

    @property
    def known_samples(self) -> int:
        """The sample number after the last known one."""
        return self.segments[-1].stop if self.segments else 0

    @property
    def total_samples(self) -> int:
        """The sample numbers of the job: `OPEN_TOTAL` before its end is known."""
        return self.known_samples if self.has_ended else OPEN_TOTAL

    @property
    def steps(self) -> int:
        """The last step that can be trained by now."""
        known, follow = self.known_samples // self.batch_size, self.data.follow
        return known - (follow is not None and follow.may_end and known > 0 and not self.has_ended)

    def slice_of(self, step: int, rank: int = 0, trainers: int = 1) -> range:
        """See `BatchOrder.slice_of`; some of the sample numbers may be void."""
        first = -(-self.segments[0].first_sample // self.batch_size) + 1 if self.segments else 1
        known = self.known_samples // self.batch_size
        if not first <= step <= known:
            raise ValueError(f"step {step} is outside {first}..{known}")
        if not 0 <= rank < trainers:
            raise ValueError(f"rank {rank} is outside 0..{trainers - 1}")
        return part_of(range((step - 1) * self.batch_size, step * self.batch_size), rank, trainers)

    def indices_of(self, samples: range) -> Ints:
        """Return the dataset rows of a contiguous range of sample numbers, int64 [n], without the void ones."""
        parts = ((segment, segment.real(samples)) for segment in self._segments_of(samples))
        return np.concatenate([np.empty(0, np.int64), *(segment.rows_at(part) for segment, part in parts if part)])

    def real_samples(self, step: int) -> int:
        """Return the number of samples of the whole batch of `step` that are not void, at least 1."""
        samples = self.slice_of(step)
        return sum(len(segment.real(samples)) for segment in self._segments_of(samples))

    def ended_pin(self, step: int) -> int:
        """Return the number of the last pin with its end in the batch of `step`, 0 if none has.

        Pins that begin after this batch do not count, so a process that has not read them returns the same.
        """
        samples = self.slice_of(step)
        ended = (each for each in self._segments_of(samples) if samples.start < each.stop <= samples.stop)
        return max((each.number + 1 for each in ended), default=0)

    def window_at(self, sample: int) -> WindowPlace | None:
        """Return the window of a sample number; None if its rows are not read by windows, or if it is void."""
        one = range(sample, sample + 1)
        found = [segment for segment in self._segments_of(one) if segment.real(one)]
        return found[0].window_at(sample) if found else None

    def _segments_of(self, samples: range) -> tuple[Segment, ...]:
        """Return the segments that have some of these numbers, and perhaps neighbours of them."""
        first = bisect_right(self.segments, samples.start, key=_first_sample_of) - 1
        last = bisect_left(self.segments, samples.stop, key=_first_sample_of)
        return self.segments[max(first, 0) : last]


def _first_sample_of(segment: Segment) -> int:
    return segment.first_sample


def _shift(number: int, first_sample: int, rows: int) -> int:
    """Return the sample number of the job at which the order of a segment has its number 0."""
    return first_sample - number * rows
