"""A capture of rows at one moment, read while pushes continue: copy-on-write by row.

A capture copies nothing when it begins. One thread reads its rows in blocks, in the order of their slots, each block
under the arena's lock. A push first puts the old values of rows that are not read yet into an undo log of bounded size.
A filling log is read before the rest, and makes the capture urgent: its reader does not wait for anything else. If the
log is full nevertheless, the push waits for the reader. If the reader makes no progress, the capture is given up, and
the push continues.
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

#: The block that is read under the lock at once. A push waits while it is copied, a fraction of a millisecond.
_BLOCK_BYTES = 256 << 10
#: The most slots that are checked under the lock at once, in blocks, if few of them are in the capture.
_WIDEST = 16
#: The log is read before the rest once it is full to this portion: with a rate limit that mostly suffices.
_LOG_GOES_FIRST = 0.25
#: The capture is urgent from this portion on: pushes fill the rest of the log until it is read.
_LOG_IS_URGENT = 0.5
#: A push waits for space in the log while the reader, which waits for the store, makes progress this often.
READ_TIMEOUT_S = 1.0


class UndoLogFullError(TrainerError):
    """A push waited for space in the undo log, and the save made no progress: the save is given up."""

    reason = "SaveOutrun"

    def __init__(self) -> None:
        super().__init__(
            f"Training waited for a save, and the store took nothing for {READ_TIMEOUT_S:g} s: the save was given up.",
            "Give the store more bandwidth, or use more shards.",
        )


class EndedError(Exception):
    """The capture was ended before all of it was read."""


class Members(Protocol):
    """The rows of a capture that are neither read nor logged yet."""

    def contains(self, slots: Ints) -> NDArray[np.bool_]:
        """Return whether each of these rows, before their change, is in the capture and unchanged since its start."""

    def next(self, first: int, limit: int, end: int) -> tuple[Ints, int]:
        """Return at most `limit` unchanged slots in [first, end), ascending, maybe none, and where to continue."""

    def close(self) -> None:
        """Clean up at the end of the capture."""


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
        start, stop = np.searchsorted(self._slots, (first, end)).tolist()
        block = self._slots[start : min(start + limit, stop)]
        waiting = block[self._epochs.chosen(block)]
        self._epochs.release(waiting)
        return waiting, int(self._slots[start + limit]) if start + limit < stop else end

    def close(self) -> None:
        self._epochs.release(self._slots)


class Capture:
    """Some rows of an arena and their state as they were when this was made.

    `preserve` is for the thread that changes rows, with `lock` held; `fill` for one other thread at a time.
    `undo_log_full`: a push found no space in the log until its timeout. `expedited`: a caller waits for the end of
    the save.
    """

    def __init__(
        self, segments: Sequence[Segment], epochs: Epochs, members: Members, *, logs: Sequence[RowBuffer], lock: Lock
    ) -> None:
        """Capture the rows of `members`; logs[b] is the undo log of segments[b]."""
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
        self._emptied = 0  # the segment from which the log is read
        self._end = segments[-1].end
        self._refused_at: float | None = None  # since when a push waits without progress of the reader

    @property
    def urgent(self) -> bool:
        """True if its reader should not wait: the log fills, or a caller waits for the end. Any thread may read it."""
        return self.expedited or self.undo_log_full or self._ended or self._log_exceeds(_LOG_IS_URGENT)

    def preserve(self, slots: Ints) -> bool:
        """Log the contents of these rows (distinct) that are not read yet, before they change.

        Return False if the log is too small for all: some are logged, and the call is to be repeated.
        """
        if self.undo_log_full or self._ended:
            return True
        due = slots[self._members.contains(slots) & (slots >= self._frontier)]
        logged = [self._keep(segment, log, due) for segment, log in zip(self._segments, self._logs, strict=True)]
        if sum(map(len, logged)) == len(due):
            return True
        for each in logged:
            self._epochs.note(each)  # as if they had changed, so that the next call logs the others
        now = monotonic()
        self._refused_at = self._refused_at or now
        self.undo_log_full = now - self._refused_at > READ_TIMEOUT_S
        return self.undo_log_full

    def fill(self, buffer: RowBuffer) -> bool:
        """Fill an empty buffer with rows not read yet, ascending, of one segment; return False if none are left.

        The log is read first once it is full enough. Raises UndoLogFullError, EndedError.
        """
        assert buffer.free == len(buffer.slots), "a capture fills empty buffers"
        if not self._log_exceeds(_LOG_GOES_FIRST):
            while buffer.free and self._sweep(buffer):
                pass
            if buffer.used:
                return True
        while buffer.free and self._read_log(buffer):
            pass
        buffer.sort()
        return buffer.used > 0

    def end(self) -> None:
        """End the capture: log and read nothing from here on. Any thread may call this at any time."""
        with self._lock:
            if not self._ended:
                self._ended = True
                self._members.close()
                for log in self._logs:
                    log.used = 0

    def _log_exceeds(self, portion: float) -> bool:
        return any(log.used > portion * len(log.slots) for log in self._logs)

    def _keep(self, segment: Segment, log: RowBuffer, due: Ints) -> Ints:
        """Log the rows (slots, segment after segment) of one segment; return the logged ones."""
        mine = due
        if len(self._segments) > 1:
            mine = due[slice(*np.searchsorted(due, (segment.first, segment.end)))]
        logged = mine[: log.free]
        if len(logged):
            log.add(segment, logged)
        return logged

    def _sweep(self, buffer: RowBuffer) -> bool:
        """Read one block of unchanged rows; return False at the end of the arena, or of the buffer's segment."""
        with self._lock:
            self._check()
            while self._frontier == self._segments[self._swept].end < self._end:
                self._swept += 1
            segment = self._segments[self._swept]
            if not buffer.used:
                buffer.select_segment(segment)
            slots, self._frontier = self._members.next(
                self._frontier, min(_block_rows(segment), buffer.free), segment.end
            )
            if len(slots) and slots[-1] - slots[0] == len(slots) - 1:
                buffer.add_run(segment, slots)
            else:
                buffer.add(segment, slots)
            return self._frontier < (segment.end if buffer.used else self._end)

    def _read_log(self, buffer: RowBuffer) -> bool:
        """Read one block of logged rows of one segment; return False if there are none."""
        with self._lock:
            self._check()
            if not buffer.used:
                filled = [log.used / max(1, len(log.slots)) for log in self._logs]
                self._emptied = filled.index(max(filled))
                buffer.select_segment(self._segments[self._emptied])
            log, segment = self._logs[self._emptied], self._segments[self._emptied]
            count = min(_block_rows(segment), buffer.free, log.used)
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
