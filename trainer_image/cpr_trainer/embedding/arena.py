"""The rows of one shard in memory, with the state of the sparse optimizer: a segment for each band of tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from threading import Lock
from typing import Self, cast

import numpy as np

from cpr_contract.limits import MAX_TRAINERS
from cpr_contract.spec import JobSpec
from cpr_trainer.arrays import Floats, Halves, Ints, Values
from cpr_trainer.embedding.bfloat16 import DTYPES, round_stochastically, rounding_keys, widen
from cpr_trainer.embedding.buffer import Redo, RowBuffer
from cpr_trainer.embedding.capture import Capture, ChangedRows, ChosenRows, Members
from cpr_trainer.embedding.dynamic.rows import DynamicRows, PlannedRows, dynamic_rows
from cpr_trainer.embedding.memory import Memory, OwnMemory
from cpr_trainer.embedding.optimizers import Assignment, band_shapes, changes_of
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.embedding.segments import Epochs, Seeding, Segment, put_rows, take_rows

#: The size of the undo log during a save: this share of the rows, but enough for some large pushes.
_LOG_SHARE = 0.03
_SMALLEST_LOG_BYTES = 8 << 20
#: Values of bfloat16 rows that are updated at a time.
_BLOCK_VALUES = 1 << 17
#: Bits of a trainer's rank.
_RANK_BITS = (MAX_TRAINERS - 1).bit_length()


class Arena:
    """The rows of some segments, in the order of their slots: one for each band, which may be empty.

    Only the serving thread applies gradients and begins and ends captures; another may read the capture meanwhile. With
    several segments, slots in arguments come segment after segment. `redo` is the record of the last push.
    """

    def __init__(self, segments: Sequence[Segment], optimizers: Assignment, memory: Memory | None = None) -> None:
        """Take these segments. Their arrays are from `memory`, and so are the others of the arena."""
        self.segments = tuple(segments)
        assert all(a.end == b.first for a, b in pairwise(self.segments)), "segments leave slots out, or share some"
        self.optimizers = optimizers
        self._edges: Ints = np.array([segment.first for segment in segments] + [segments[-1].end])
        memory = memory or OwnMemory()
        self.epochs = Epochs(int(self._edges[-1]), memory)
        self.redo = Redo(memory, self.segments)
        self._lock = Lock()
        self._logs: tuple[RowBuffer, ...] = ()
        self._capture: Capture | None = None

    @classmethod
    def empty(cls, job: JobSpec, *sizes: int, memory: Memory | None = None) -> Self:
        """Return an arena of sizes[b] rows of band b of a job's model, all zero if `memory` is new."""
        memory = memory or OwnMemory()
        return cls(empty_segments(job, sizes, memory), Assignment.of(job.model), memory)

    def __len__(self) -> int:
        return len(self.epochs.of)

    @property
    def rows(self) -> Values:
        """The rows of the only segment, [n, D]; ValueError if there are several."""
        (segment,) = self.segments
        return segment.rows

    @property
    def state(self) -> Floats:
        """The state of the only segment, float32 [n, W]; ValueError if there are several."""
        (segment,) = self.segments
        return segment.state

    @property
    def values(self) -> int:
        """The number of values all rows have, without the state."""
        return sum(segment.rows.size for segment in self.segments)

    def seed(self, placement: Placement, shard: int, seeding: Seeding) -> None:
        """Give every row that never changed its first value, and the state zero; those of no key are zero."""
        if self.epochs.of.all():
            return
        for chunk in placement.rows_of(shard):
            end = chunk.first_slot + len(chunk.rows)
            fresh = np.flatnonzero(self.epochs.of[chunk.first_slot : end] == 0)
            for segment, slots in self.parted(fresh + chunk.first_slot):
                if placement.is_dynamic(chunk.band):
                    segment.rows[slots] = 0
                else:
                    segment.write(slots, seeding.values(chunk.tables[fresh], chunk.rows[fresh]))
                segment.state[slots] = 0.0

    def bounds(self, slots: Ints) -> tuple[int, ...]:
        """Return where in `slots` those of each segment begin, and the number of slots."""
        if len(self.segments) == 1:
            return 0, len(slots)
        return tuple(np.searchsorted(slots, self._edges).tolist())

    def parted(self, slots: Ints) -> Iterator[tuple[Segment, Ints]]:
        """Yield each segment that has some of these slots, with their places in its rows."""
        for segment, (start, end) in zip(self.segments, pairwise(self.bounds(slots)), strict=True):
            if start < end:
                yield segment, segment.within(slots[start:end])

    def runs(self, chunk: slice) -> Iterator[tuple[int, slice, slice]]:
        """Yield the segments with some of a range of slots: the number, and those slots in it and in the range."""
        for place, segment in enumerate(self.segments):
            start, end = max(chunk.start, segment.first), min(chunk.stop, segment.end)
            if start < end:
                inside = slice(start - segment.first, end - segment.first)
                yield place, inside, slice(start - chunk.start, end - chunk.start)

    def read(self, slots: Ints) -> tuple[Values, ...]:
        """Return the rows in `slots` (int64 [k]), a copy: of each segment [k_b, D_b] in its type, and k_b may be 0."""
        edges = zip(self.segments, pairwise(self.bounds(slots)), strict=True)
        return tuple(segment.rows.take(segment.within(slots[start:end]), axis=0) for segment, (start, end) in edges)

    def values_in(self, slots: Ints) -> int:
        """Return the number of values of the rows in `slots`."""
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

    def apply(  # noqa: PLR0913 -- the push, and its names
        self,
        slots: Ints,
        numbers: Ints,
        gradients: Floats | Sequence[Floats],
        step: int,
        note: bytes = b"",
        *,
        rank: int = 0,
        planned: Sequence[PlannedRows] = (),
    ) -> bool:
        """Take one optimizer step, the job's `step` (from 1).

        slots: int64 [k], all different. numbers: int64 [k], the numbers of the rows in them (see `Placement`).
        gradients: float32 [k, D]; where there are several segments one array for each, as `read` returns them.
        note: goes into the redo record. rank: that of the trainer, where each push is a step of its own; it determines
        with `step` how values of bfloat16 are rounded. planned: the rows of dynamic tables; numbers are then the bits
        of their keys, and slots have their cells, too.

        Return False if a capture has not read these rows yet and its undo log is full: nothing has changed, try again.
        """
        by_segment = (gradients,) if isinstance(gradients, np.ndarray) else gradients
        assert len(numbers) == sum(map(len, by_segment)), "a gradient for each row"
        cells = sum(len(each.update.cells) for each in planned)
        assert len(slots) == len(numbers) + cells, "a row or a cell for each slot"
        with self._lock:
            if self._capture is not None and not self._capture.preserve(slots):
                return False
            edges = self.bounds(slots)
            arrays = self._redo_arrays(edges)
            of_band = {each.band.band: each for each in planned}
            for band, (segment, (start, end)) in enumerate(zip(self.segments, pairwise(edges), strict=True)):
                if start < end and segment.dim:
                    at, names = segment.within(slots[start:end]), numbers[start:end]
                    self._compute(segment, at, names, by_segment[band], (step, rank), arrays[band], of_band.get(band))
            for each in planned:
                if each.band.cell_band is not None:
                    arrays[each.band.cell_band][1].view(np.uint32)[:] = each.update.contents
            self.redo.begin(slots, note)
            self._put(slots, edges, arrays)
            for each in planned:
                each.band.note(each.update)
            return True

    def reapply_last_push(self) -> None:
        """Apply the redo record again: the process that wrote it may have been killed in between."""
        slots = self.redo.slots
        edges = self.bounds(slots)
        with self._lock:
            self._put(slots, edges, self._redo_arrays(edges))

    def capture_changes(self, since: int) -> Capture:
        """Capture the rows that changed after epoch `since`, and end the epoch; 0 captures all that ever changed.

        No row is copied now. An earlier capture is ended. Raises OverflowError when all epochs are used up.
        """
        return self._begin(lambda: ChangedRows(self.epochs, since))

    def capture_rows(self, slots: Ints) -> Capture:
        """Capture the rows in `slots` (ascending, distinct). An earlier capture is ended."""
        return self._begin(lambda: ChosenRows(self.epochs, slots))

    def forget_epochs(self) -> None:
        """Count epochs from the start; see `Epochs.fold`. An earlier capture is ended."""
        if self._capture is not None:
            self._capture.end()
        with self._lock:
            self.epochs.fold()

    def _begin(self, members: Callable[[], Members]) -> Capture:
        if self._capture is not None:
            self._capture.end()
        self._logs = self._logs or tuple(
            RowBuffer.like(
                each, min(len(each), max(int(_LOG_SHARE * len(each)), _SMALLEST_LOG_BYTES // each.row_bytes))
            )
            for each in self.segments
        )
        with self._lock:
            self._capture = Capture(self.segments, self.epochs, members(), logs=self._logs, lock=self._lock)
            return self._capture

    def _redo_arrays(self, edges: Sequence[int]) -> list[tuple[Values, Floats]]:
        """Return the arrays of the redo record for rows and state of a push with these bounds, of each segment."""
        return self.redo.arrays([end - start for start, end in pairwise(edges)])

    def _compute(  # noqa: PLR0913, PLR0917 -- the inputs of a step, and its output
        self,
        segment: Segment,
        slots: Ints,
        numbers: Ints,
        gradients: Floats,
        update: tuple[int, int],
        to: tuple[Values, Floats],
        planned: PlannedRows | None,
    ) -> None:
        """Compute a step on rows of one segment, at `slots` in it: their new values and state go to `to`.

        update: the step and the rank.
        """
        (step, rank), (rows, state) = update, to
        take_rows(segment.state, slots, state)
        owned = numbers
        if planned is not None and not self.optimizers.uniform:
            owned = self.optimizers.numbers_in(planned.tables)
        if planned is not None or segment.precision == "fp32":
            take_rows(segment.rows, slots, rows)
        if planned is not None:
            planned.band.begin(planned, rows, state)
        if segment.precision == "fp32":
            self._add_changes(cast(Floats, rows), state, owned, gradients, step)
            return
        keys = rounding_keys(numbers, step << _RANK_BITS | rank)
        size = max(1, _BLOCK_VALUES // segment.dim)  # float32 only exists in the cache
        for first in range(0, len(slots), size):
            block = slice(first, first + size)
            if planned is None:
                take_rows(segment.rows, slots[block], rows[block])
            values = widen(cast(Halves, rows[block]))
            self._add_changes(values, state[block], owned[block], gradients[block], step)
            round_stochastically(values, keys[block], cast(Halves, rows[block]))

    def _add_changes(self, rows: Floats, state: Floats, numbers: Ints, gradients: Floats, step: int) -> None:
        """Add what a step changes to rows, float32 [k, D], and bring their state up to date."""
        for optimizer, at in self.optimizers.parts(numbers):
            if at is None:
                rows += changes_of(optimizer, state, gradients, step)
            else:
                mine = state.take(at, axis=0)
                changes = changes_of(optimizer, mine, gradients.take(at, axis=0), step)
                state[at] = mine
                rows[at] += changes

    def _put(self, slots: Ints, edges: Sequence[int], arrays: Sequence[tuple[Values, Floats]]) -> None:
        """Copy the redo record into the rows, which is several times as fast as adding in place."""
        self.epochs.note(slots)
        for segment, (start, end), (rows, state) in zip(self.segments, pairwise(edges), arrays, strict=True):
            if start < end:
                at = segment.within(slots[start:end])
                put_rows(segment.state, at, state)
                put_rows(segment.rows, at, rows)


def empty_segments(job: JobSpec, sizes: Sequence[int], memory: Memory) -> list[Segment]:
    """Return the segments of an arena, all zero if `memory` is new. They are its first arrays."""
    segments, first = list[Segment](), 0
    for size, shape in zip(sizes, band_shapes(job.model), strict=True):
        rows = memory.array((size, shape.dim), DTYPES[shape.precision])
        state = memory.array((size, shape.width), np.float32)
        segments.append(Segment(first, rows, state))
        first += size
    return segments


@dataclass(frozen=True, slots=True, eq=False)
class LocalRows:
    """A shard's arena, and the placement of the model's rows in it; and its dynamic tables."""

    arena: Arena
    placement: Placement
    index: int
    seeding: Seeding
    dynamic: tuple[DynamicRows, ...] = ()

    @classmethod
    def of(cls, job: JobSpec, placement: Placement, index: int, memory: Memory | None = None) -> Self:
        """Return an arena for shard `index` of a job, all zero if `memory` is new."""
        arena = Arena.empty(job, *placement.sizes(index), memory=memory)
        dynamic = dynamic_rows(job, placement, index, arena.segments)
        return cls(arena, placement, index, Seeding.of(job.model, job.data.seed), dynamic)

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """The places of each segment of the arena: the first, and the one after the last."""
        return self.placement.spans(self.index)
