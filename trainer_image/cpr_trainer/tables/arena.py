"""One shard's rows in memory, with the state of the sparse optimizer beside them: a block for each band of tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from threading import Lock
from typing import Self

import numpy as np

from cpr_contract.spec import JobSpec, SparseOptimizerSpec
from cpr_trainer.arrays import Floats, Ints
from cpr_trainer.placement import Placement
from cpr_trainer.tables.assignment import Assignment, state_widths
from cpr_trainer.tables.buffer import RowBuffer
from cpr_trainer.tables.capture import Capture, ChangedRows, ChosenRows, Members
from cpr_trainer.tables.epochs import Epochs
from cpr_trainer.tables.optimizers import changes_of
from cpr_trainer.tables.seeding import Seeding
from cpr_trainer.tables.segments import Segment

#: What pushes may log during a save: three parts in a hundred of the rows, but enough for some large pushes.
_LOG_SHARE = 0.03
_SMALLEST_LOG_BYTES = 8 << 20


class Arena:
    """The rows of some segments, in the order of their slots: one for each band, which may be empty.

    One thread serves: it alone applies gradients and begins and ends captures. Another may read the capture meanwhile.
    Where there are several segments, slots that it is given are ascending.
    """

    def __init__(self, segments: Sequence[Segment], optimizers: Assignment) -> None:
        self.segments = tuple(segments)
        self.optimizers = optimizers
        self._edges: Ints = np.array([segment.first for segment in segments] + [segments[-1].end])
        self.epochs = Epochs(int(self._edges[-1]))
        self._lock = Lock()
        self._logs: tuple[RowBuffer, ...] = ()
        self._capture: Capture | None = None

    @classmethod
    def empty(cls, job: JobSpec, *sizes: int) -> Self:
        """Return an arena of sizes[b] rows of band b of a job's model, all zero."""
        dims, widths = job.model.dims, state_widths(job.model)
        segments, first = list[Segment](), 0
        for size, dim, width in zip(sizes, dims, widths, strict=True):
            segments.append(Segment(first, np.zeros((size, dim), np.float32), np.zeros((size, width), np.float32)))
            first += size
        return cls(segments, Assignment.of(job.model))

    def __len__(self) -> int:
        return len(self.epochs.of)

    @property
    def rows(self) -> Floats:
        """The rows of the only segment, float32 [n, D]; ValueError if there are several."""
        (segment,) = self.segments
        return segment.rows

    @property
    def state(self) -> Floats:
        """The state of the only segment, float32 [n, W]; ValueError if there are several."""
        (segment,) = self.segments
        return segment.state

    @property
    def values(self) -> int:
        """How many values all rows have, without the state."""
        return sum(segment.rows.size for segment in self.segments)

    @property
    def size_bytes(self) -> int:
        """Bytes of all rows with their state."""
        return sum(len(segment) * segment.row_bytes for segment in self.segments)

    def seed(self, placement: Placement, shard: int, seeding: Seeding) -> None:
        """Give every row that never changed its first value, and the state zero."""
        if self.epochs.of.all():
            return
        for chunk in placement.rows_of(shard):
            end = chunk.first_slot + len(chunk.rows)
            fresh = np.flatnonzero(self.epochs.of[chunk.first_slot : end] == 0)
            for segment, slots in self.parted(fresh + chunk.first_slot):
                segment.rows[slots] = seeding.values(chunk.tables[fresh], chunk.rows[fresh])
                segment.state[slots] = 0.0

    def bounds(self, slots: Ints) -> tuple[int, ...]:
        """Return where in `slots` those of each segment begin, and how many there are in all."""
        if len(self.segments) == 1:
            return 0, len(slots)
        return tuple(np.searchsorted(slots, self._edges).tolist())

    def parted(self, slots: Ints) -> Iterator[tuple[Segment, Ints]]:
        """Yield each segment that holds some of these slots, with where in its rows they are."""
        for segment, (start, end) in zip(self.segments, pairwise(self.bounds(slots)), strict=True):
            if start < end:
                yield segment, segment.within(slots[start:end])

    def runs(self, chunk: slice) -> Iterator[tuple[int, slice, slice]]:
        """Yield the segments that hold some of a range of slots: which, and where those are in it and in the range."""
        for place, segment in enumerate(self.segments):
            start, end = max(chunk.start, segment.first), min(chunk.stop, segment.end)
            if start < end:
                inside = slice(start - segment.first, end - segment.first)
                yield place, inside, slice(start - chunk.start, end - chunk.start)

    def read(self, slots: Ints) -> tuple[Floats, ...]:
        """Return the rows in `slots` (int64 [k]), a copy: of each segment float32 [k_b, D_b], and k_b may be 0."""
        edges = zip(self.segments, pairwise(self.bounds(slots)), strict=True)
        return tuple(segment.rows.take(segment.within(slots[start:end]), axis=0) for segment, (start, end) in edges)

    def values_in(self, slots: Ints) -> int:
        """Return how many values the rows in `slots` have."""
        edges = zip(self.segments, pairwise(self.bounds(slots)), strict=True)
        return sum((end - start) * segment.dim for segment, (start, end) in edges)

    def split(self, slots: Ints, values: Floats) -> tuple[Floats, ...]:
        """Return the values of rows in `slots`, [v], segment after segment, as `read` returns them; no copy."""
        found, first = list[Floats](), 0
        for segment, (start, end) in zip(self.segments, pairwise(self.bounds(slots)), strict=True):
            last = first + (end - start) * segment.dim
            found.append(values[first:last].reshape(-1, segment.dim))
            first = last
        return tuple(found)

    def apply(self, slots: Ints, numbers: Ints, gradients: Floats | Sequence[Floats], step: int) -> bool:
        """Take one optimizer step, the job's `step` (from 1).

        slots: int64 [k], all different. numbers: int64 [k], the numbers of the rows in them (see `Placement`).
        gradients: float32 [k, D]; where there are several segments one array for each, as `read` returns them.

        False if a capture has yet to read what these rows hold, and no room to keep it: nothing changed, try again.
        """
        by_segment = (gradients,) if isinstance(gradients, np.ndarray) else gradients
        with self._lock:
            if self._capture is not None and not self._capture.preserve(slots):
                return False
            self.epochs.note(slots)
            edges = pairwise(self.bounds(slots))
            for segment, mine, (start, end) in zip(self.segments, by_segment, edges, strict=True):
                if start < end:
                    self._change(segment, segment.within(slots[start:end]), numbers[start:end], mine, step)
            return True

    def capture_changes(self, since: int) -> Capture:
        """Hold the rows that changed after epoch `since` as they are now, and end the epoch; 0 for all that ever did.

        No row is copied now. A capture under way is ended. Raises OverflowError when all epochs are used up.
        """
        return self._begin(lambda: ChangedRows(self.epochs, since))

    def capture_rows(self, slots: Ints) -> Capture:
        """Hold the rows in `slots` (ascending, distinct) as they are now. A capture under way is ended."""
        return self._begin(lambda: ChosenRows(self.epochs, slots))

    def forget_epochs(self) -> None:
        """Count epochs from the start; see `Epochs.fold`. A capture under way is ended."""
        if self._capture is not None:
            self._capture.end()
        with self._lock:
            self.epochs.fold()

    def _begin(self, members: Callable[[], Members]) -> Capture:
        if self._capture is not None:
            self._capture.end()
        self._logs = self._logs or tuple(RowBuffer.like(segment, _log_rows(segment)) for segment in self.segments)
        with self._lock:
            self._capture = Capture(self.segments, self.epochs, members(), logs=self._logs, lock=self._lock)
            return self._capture

    def _change(self, segment: Segment, slots: Ints, numbers: Ints, gradients: Floats, step: int) -> None:
        """Take a step on rows of one segment, at `slots` in it."""
        for optimizer, at in self.optimizers.parts(numbers):
            if at is None:
                _step(segment, optimizer, slots, gradients, step)
            else:
                _step(segment, optimizer, slots.take(at), gradients.take(at, axis=0), step)


def _step(segment: Segment, optimizer: SparseOptimizerSpec, slots: Ints, gradients: Floats, step: int) -> None:
    """Change rows, all different. To read, add and put back is several times as fast as to add where they are."""
    state = segment.state.take(slots, axis=0)
    changes = changes_of(optimizer, state, gradients, step)
    segment.state[slots] = state
    changes += segment.rows.take(slots, axis=0)
    segment.rows[slots] = changes


def _log_rows(segment: Segment) -> int:
    return min(len(segment), max(int(_LOG_SHARE * len(segment)), _SMALLEST_LOG_BYTES // segment.row_bytes))
