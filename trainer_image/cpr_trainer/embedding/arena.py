"""One shard's rows in memory, with the state of the sparse optimizer beside them: a block for each band of tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from threading import Lock
from typing import Self

import numpy as np

from cpr_contract.spec import JobSpec
from cpr_trainer.arrays import Floats, Ints
from cpr_trainer.embedding.buffer import Redo, RowBuffer
from cpr_trainer.embedding.capture import Capture, ChangedRows, ChosenRows, Members
from cpr_trainer.embedding.memory import Memory, OwnMemory
from cpr_trainer.embedding.optimizers import Assignment, changes_of, state_widths
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.embedding.segments import Epochs, Seeding, Segment

#: What pushes may log during a save: three parts in a hundred of the rows, but enough for some large pushes.
_LOG_SHARE = 0.03
_SMALLEST_LOG_BYTES = 8 << 20


class Arena:
    """The rows of some segments, in the order of their slots: one for each band, which may be empty.

    One thread serves: it alone applies gradients and begins and ends captures. Another may read the capture meanwhile.
    Where there are several segments, slots that it is given are ascending. `redo` is the record of the last push.
    """

    def __init__(self, segments: Sequence[Segment], optimizers: Assignment, memory: Memory | None = None) -> None:
        """Hold these segments. `memory` is where theirs comes from, and where the rest shall be."""
        self.segments = tuple(segments)
        self.optimizers = optimizers
        self._edges: Ints = np.array([segment.first for segment in segments] + [segments[-1].end])
        memory = memory or OwnMemory()
        self.epochs = Epochs(int(self._edges[-1]), memory)
        values, state_values = self.values, sum(segment.state.size for segment in self.segments)
        self.redo = Redo(memory, len(self.epochs.of), values, state_values)
        self._lock = Lock()
        self._logs: tuple[RowBuffer, ...] = ()
        self._capture: Capture | None = None

    @classmethod
    def empty(cls, job: JobSpec, *sizes: int, memory: Memory | None = None) -> Self:
        """Return an arena of sizes[b] rows of band b of a job's model: all zero, where `memory` is new."""
        memory = memory or OwnMemory()
        return cls(empty_segments(job, sizes, memory), Assignment.of(job.model), memory)

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

    def apply(
        self, slots: Ints, numbers: Ints, gradients: Floats | Sequence[Floats], step: int, note: bytes = b""
    ) -> bool:
        """Take one optimizer step, the job's `step` (from 1).

        slots: int64 [k], all different. numbers: int64 [k], the numbers of the rows in them (see `Placement`).
        gradients: float32 [k, D]; where there are several segments one array for each, as `read` returns them.
        note: goes into the redo record.

        False if a capture has yet to read what these rows hold, and no room to keep it: nothing changed, try again.
        """
        by_segment = (gradients,) if isinstance(gradients, np.ndarray) else gradients
        with self._lock:
            if self._capture is not None and not self._capture.preserve(slots):
                return False
            edges = self.bounds(slots)
            room = self._room(edges)
            for segment, mine, (start, end), to in zip(self.segments, by_segment, pairwise(edges), room, strict=True):
                if start < end:
                    self._compute(segment, segment.within(slots[start:end]), numbers[start:end], mine, step, to)
            self.redo.begin(slots, note)
            self._put(slots, edges, room)
            return True

    def reapply_last_push(self) -> None:
        """Put the last push into the rows again: whoever did it first may have been killed on the way."""
        slots = self.redo.slots
        edges = self.bounds(slots)
        with self._lock:
            self._put(slots, edges, self._room(edges))

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

    def _room(self, edges: Sequence[int]) -> list[tuple[Floats, Floats]]:
        """Return where the redo record keeps rows and state of a push with these bounds, of each segment."""
        counts = [end - start for start, end in pairwise(edges)]
        segments = self.segments
        return self.redo.room(counts, [each.dim for each in segments], [each.state.shape[1] for each in segments])

    def _compute(  # noqa: PLR0913, PLR0917 -- a step, and where its result goes
        self, segment: Segment, slots: Ints, numbers: Ints, gradients: Floats, step: int, to: tuple[Floats, Floats]
    ) -> None:
        """Compute what a step makes of rows of one segment, at `slots` in it: their new values and state."""
        rows, state = to
        segment.rows.take(slots, axis=0, out=rows, mode="clip")  # they are valid; `raise` would copy twice
        segment.state.take(slots, axis=0, out=state, mode="clip")
        for optimizer, at in self.optimizers.parts(numbers):
            if at is None:
                rows += changes_of(optimizer, state, gradients, step)
            else:
                mine = state.take(at, axis=0)
                changes = changes_of(optimizer, mine, gradients.take(at, axis=0), step)
                state[at] = mine
                rows[at] += changes

    def _put(self, slots: Ints, edges: Sequence[int], room: Sequence[tuple[Floats, Floats]]) -> None:
        """Bring the rows to what the redo record says. To put back is several times as fast as to add in place."""
        self.epochs.note(slots)
        for segment, (start, end), (rows, state) in zip(self.segments, pairwise(edges), room, strict=True):
            if start < end:
                at = segment.within(slots[start:end])
                segment.state[at] = state
                segment.rows[at] = rows


def empty_segments(job: JobSpec, sizes: Sequence[int], memory: Memory) -> list[Segment]:
    """Return the segments of an arena, all zero where `memory` is new. Nothing else of it lies before them."""
    dims, widths = job.model.dims, state_widths(job.model)
    segments, first = list[Segment](), 0
    for size, dim, width in zip(sizes, dims, widths, strict=True):
        rows, state = memory.array((size, dim), np.float32), memory.array((size, width), np.float32)
        segments.append(Segment(first, rows, state))
        first += size
    return segments


def _log_rows(segment: Segment) -> int:
    return min(len(segment), max(int(_LOG_SHARE * len(segment)), _SMALLEST_LOG_BYTES // segment.row_bytes))


# Where the rows of a shard live: its arena, and which rows of the model lie in it.


@dataclass(frozen=True, slots=True, eq=False)
class LocalRows:
    """A shard's arena, and which rows lie in it."""

    arena: Arena
    placement: Placement
    index: int
    seeding: Seeding

    @classmethod
    def of(cls, job: JobSpec, placement: Placement, index: int, memory: Memory | None = None) -> Self:
        """Return an arena for shard `index` of a job, empty where `memory` is new."""
        arena = Arena.empty(job, *placement.sizes(index), memory=memory)
        return cls(arena, placement, index, Seeding.of(job.model, job.data.seed))

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """The places of each segment of the arena: the first, and that after the last."""
        return self.placement.spans(self.index)
