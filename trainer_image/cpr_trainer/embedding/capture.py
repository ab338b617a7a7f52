"""Rows as they were at one moment, read while pushes go on: copy-on-write by row.

A capture takes no copy when it begins. One thread reads the rows it holds in blocks, in the order of their slots, each
block under the arena's lock. A push that is about to change rows which the capture has yet to read first puts their old
values into a log of bounded size. A log that fills is read before the rest, and makes the capture urgent: nothing else
may hold up its reader. When it is full all the same, the push has to wait for the reader, which costs training what a
save without a log would cost it. Where the reader stands still, the capture is given up, and the push goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from time import monotonic
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cpr_trainer.arrays import Ints
from cpr_trainer.embedding.buffer import RowBuffer
from cpr_trainer.embedding.segments import Epochs, Segment
from cpr_trainer.errors import TrainerError

#: What is read under the lock at once: a push waits for no longer than this takes to copy, a fraction of a millisecond.
_BLOCK_BYTES = 256 << 10
#: At most so many times as many slots are looked at under the lock at once, where few of them are in the capture.
_WIDEST = 16
#: What is logged goes before the rest once the log is full to this portion: at a limited pace that is mostly enough.
_LOG_GOES_FIRST = 0.25
#: And without a limit from here on: the rest of the log is for what pushes bring until it is read.
_LOG_IS_URGENT = 0.5
#: A push waits for room in the log as long as the reader, which waits for the store, reads something this often.
PATIENCE_S = 1.0


class UndoLogFullError(TrainerError):
    """A push waited, and the save read no rows: it is given up, and training goes on."""

    reason = "SaveOutrun"

    def __init__(self) -> None:
        super().__init__(
            f"Training waited for a save, and the store took nothing for {PATIENCE_S:g} s: the save was given up.",
            "Give the store more bandwidth, or use more shards.",
        )


class EndedError(Exception):
    """The capture was ended before all of it was read."""


class Members(Protocol):
    """Which rows a capture holds, as long as they are neither read nor logged."""

    def contains(self, slots: Ints) -> NDArray[np.bool_]:
        """Whether each of these rows, which are about to change, is in the capture and unchanged since it began."""
        ...

    def next(self, first: int, limit: int, end: int) -> tuple[Ints, int]:
        """Return at most `limit` slots in [first, end), ascending, unchanged since, and where to go on; [] may come."""
        ...

    def close(self) -> None:
        """Leave no trace: the capture ends."""
        ...


class ChangedRows:
    """The rows that changed after epoch `since`, up to the moment this is made."""

    def __init__(self, epochs: Epochs, since: int) -> None:
        self._epochs = epochs
        self._since = since
        self._until = epochs.end()
        self._width = 1  # slots to look at, in limits: as many as held about one limit of rows lately

    def contains(self, slots: Ints) -> NDArray[np.bool_]:
        """See `Members`: rows that changed since have a later epoch."""
        epochs = self._epochs.of[slots]
        return (epochs > self._since) & (epochs <= self._until)

    def next(self, first: int, limit: int, end: int) -> tuple[Ints, int]:
        """See `Members`."""
        last = min(first + self._width * limit, end)
        slots = self._epochs.changed(self._since, self._until, first, last)
        if len(slots) > limit:
            self._width = max(1, self._width // 2)
            return slots[:limit], int(slots[limit])
        if 2 * len(slots) <= limit:
            self._width = min(_WIDEST, 2 * self._width)
        return slots, last

    def close(self) -> None:
        """See `Members`."""


class ChosenRows:
    """The rows in `slots`, ascending and distinct."""

    def __init__(self, epochs: Epochs, slots: Ints) -> None:
        self._epochs = epochs
        self._slots = slots
        epochs.choose(slots)

    def contains(self, slots: Ints) -> NDArray[np.bool_]:
        """See `Members`: a row that changes is chosen no more."""
        return self._epochs.chosen(slots)

    def next(self, first: int, limit: int, end: int) -> tuple[Ints, int]:
        """See `Members`."""
        start, stop = np.searchsorted(self._slots, (first, end)).tolist()
        block = self._slots[start : min(start + limit, stop)]
        waiting = block[self._epochs.chosen(block)]
        self._epochs.release(waiting)
        return waiting, int(self._slots[start + limit]) if start + limit < stop else end

    def close(self) -> None:
        """See `Members`."""
        self._epochs.release(self._slots)


class Capture:
    """Some rows of an arena and their state as they were when this was made.

    `preserve` is for the thread that changes rows, with `lock` held; `fill` for one other thread at a time.
    `undo_log_full` says that a push waited for room in the log in vain; who sets `expedited` waits for the end.
    """

    def __init__(
        self, segments: Sequence[Segment], epochs: Epochs, members: Members, *, logs: Sequence[RowBuffer], lock: Lock
    ) -> None:
        """Hold the rows of `members`; logs[b] takes those of segments[b]."""
        self.undo_log_full = False
        self.expedited = False
        self._segments = segments
        self._epochs = epochs
        self._members = members
        self._logs = logs
        self._lock = lock
        self._ended = False
        self._frontier = 0
        self._swept = 0  # the segment in which the frontier is
        self._emptied = 0  # the one whose log is being read
        self._end = segments[-1].end
        self._refused_at: float | None = None  # since when a push waits and nothing of the log was read

    @property
    def urgent(self) -> bool:
        """Whether its reader should wait for nothing: the log fills, or somebody waits for the end. Any thread asks."""
        return self.expedited or self.undo_log_full or self._ended or self._log_exceeds(_LOG_IS_URGENT)

    def preserve(self, slots: Ints) -> bool:
        """Log what these rows (distinct) hold, as far as it is still to be read: they are about to change.

        False if not all of it found room: what did is in the log, and the rest is to be tried again.
        """
        if self.undo_log_full or self._ended:
            return True
        due = slots[self._members.contains(slots) & (slots >= self._frontier)]
        logged = [self._keep(segment, log, due) for segment, log in zip(self._segments, self._logs, strict=True)]
        if sum(map(len, logged)) == len(due):
            return True
        for each in logged:
            self._epochs.note(each)  # as if they had changed: the next try logs the rest
        now = monotonic()
        self._refused_at = self._refused_at or now
        self.undo_log_full = now - self._refused_at > PATIENCE_S
        return self.undo_log_full

    def fill(self, buffer: RowBuffer) -> bool:
        """Fill an empty buffer with rows not read yet, ascending, of one segment; False if there are none left.

        What is logged goes first once there is much of it. Raises UndoLogFullError, EndedError.
        """
        if not self._log_exceeds(_LOG_GOES_FIRST):
            while buffer.room and self._sweep(buffer):
                pass
            if buffer.used:
                return True
        while buffer.room and self._read_log(buffer):
            pass
        buffer.sort()
        return buffer.used > 0

    def end(self) -> None:
        """Preserve and give out nothing from here on. Any thread may call it, at any time."""
        with self._lock:
            if not self._ended:
                self._ended = True
                self._members.close()
                for log in self._logs:
                    log.used = 0

    def _log_exceeds(self, portion: float) -> bool:
        return any(log.used > portion * len(log.slots) for log in self._logs)

    def _keep(self, segment: Segment, log: RowBuffer, due: Ints) -> Ints:
        """Log those of the rows (slots, ascending if there are several segments) that lie in a segment; which did."""
        mine = due
        if len(self._segments) > 1:
            mine = due[slice(*np.searchsorted(due, (segment.first, segment.end)))]
        logged = mine[: log.room]
        if len(logged):
            log.add(segment, logged)
        return logged

    def _sweep(self, buffer: RowBuffer) -> bool:
        """Read one block of rows that are where they were; False at the end of the arena, or of the buffer's rows."""
        with self._lock:
            self._check()
            while self._frontier == self._segments[self._swept].end < self._end:
                self._swept += 1
            segment = self._segments[self._swept]
            if not buffer.used:
                buffer.turn_to(segment)
            slots, self._frontier = self._members.next(
                self._frontier, min(_block_rows(segment), buffer.room), segment.end
            )
            if len(slots) and slots[-1] - slots[0] == len(slots) - 1:
                buffer.add_run(segment, slots)
            else:
                buffer.add(segment, slots)
            return self._frontier < (segment.end if buffer.used else self._end)

    def _read_log(self, buffer: RowBuffer) -> bool:
        """Read one block of rows of one segment that have changed since; False if there are none."""
        with self._lock:
            self._check()
            if not buffer.used:
                filled = [log.used / max(1, len(log.slots)) for log in self._logs]
                self._emptied = filled.index(max(filled))
                buffer.turn_to(self._segments[self._emptied])
            log, segment = self._logs[self._emptied], self._segments[self._emptied]
            count = min(_block_rows(segment), buffer.room, log.used)
            log.move_last(count, buffer)
            self._refused_at = None
            return count > 0

    def _check(self) -> None:
        if self._ended:
            raise EndedError
        if self.undo_log_full:
            raise UndoLogFullError


def _block_rows(segment: Segment) -> int:
    return max(1, _BLOCK_BYTES // segment.row_bytes)
