"""The changes of one part of a shard's rows that its parity lacks.

Before a row changes it is *noted*: its bits in the parity are logged, once until the next flush. A flush has the XOR of
the logged and the current bits. Its log stays while it is in flight, in addition to the next one, so the rows can be
read as they are in the parity, with and without the flush.

A new parity gets the part in pieces: rows from the *frontier* on are not in it yet, and count as zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from cpr_trainer.arrays import Ints
from cpr_trainer.parity.coding import Image, View
from cpr_trainer.parity.flush import Batch, Delta, Flush, Moment, Point

#: Rows that are checked for changes, for each one that fits into a flush.
_LOOKS = 16


class Stream:
    """The stream of a part's changes to the holder of its parity. Not thread-safe.

    `settled` is the acknowledged point in the parity, None without a parity. `in_flight` is the flush that it may have
    in addition.
    """

    def __init__(self, views: Sequence[View]) -> None:
        """`views` are the rows of the part, segment after segment."""
        self.settled: Point | None = None
        self.in_flight: Flush | None = None
        self._views = tuple(views)
        # True for rows that equal those in the parity, so that their next change has to be noted.
        self._watched: tuple[NDArray[np.bool_], ...] = tuple(np.zeros(len(view), np.bool_) for view in views)
        self._log, self._sealed, self._scratch = (self._batches() for _ in range(3))
        self._frontier = self._next_frontier = (0,) * len(self._views)

    @property
    def complete(self) -> bool:
        """True if the parity is known to have the whole part, as of `settled`."""
        return self.settled is not None and self.settled.number > 0 and self._is_end(self._frontier)

    @property
    def pending_bytes(self) -> int:
        """The size of the changes for the next flush."""
        return sum(log.nbytes for log in self._log)

    def begin(self, build: int | None) -> None:
        """Start with a parity that has nothing of the part yet; None: without one."""
        self.settled = None if build is None else Point(build)
        if self.in_flight is not None:
            self.in_flight = None
            self._scratch = self._batches()  # the thread that still sends the old one must not send parts of the next
        self._frontier = self._next_frontier = (0,) * len(self._views)
        for watched, log, sealed in zip(self._watched, self._log, self._sealed, strict=True):
            watched[:] = False
            log.clear()
            sealed.clear()

    def adopt(self, point: Point) -> None:
        """Start with a parity that has the current rows of the whole part, at this point."""
        self.begin(point.build)
        self.settled = point
        self._frontier = self._next_frontier = tuple(map(len, self._views))
        for watched in self._watched:
            watched[:] = True

    def note(self, segment: int, at: Ints) -> None:
        """Log these rows of a segment's part (int64 [n], distinct) before their change."""
        mine = at[self._watched[segment][at]]
        if len(mine):
            self._views[segment].read(mine, self._log[segment].add(mine))
            self._watched[segment][mine] = False

    def seal(self, moment: Moment, mark: str, most_bytes: int) -> Flush | None:
        """Return the flush of a moment, which is under way from here on; None without a parity.

        It has all changes up to now, and rows that are not in the parity yet, of at most `most_bytes`, or half of that
        after many changes. Its arrays stay unchanged until the next one is sealed.
        """
        if self.settled is None:
            return None
        if self.in_flight is not None:
            raise RuntimeError(f"flush {self.in_flight.after.number} is under way")
        self._log, self._sealed = self._sealed, self._log
        free_bytes = max(most_bytes - sum(log.nbytes for log in self._sealed), most_bytes // 2)
        frontier = list[int]()
        for segment, log in enumerate(self._sealed):
            self._log[segment].clear()
            delta = self._scratch[segment]
            delta.clear()
            self._add_changes(segment, log, delta)
            reached, added = self._add_rows(segment, delta, free_bytes)
            free_bytes = max(free_bytes - added, 0)
            frontier.append(reached)
        self._next_frontier = tuple(frontier)
        deltas = tuple(Delta(each.at, each.image) for each in self._scratch)
        after = Point(self.settled.build, *moment)
        self.in_flight = Flush(self.settled, after, self._is_end(frontier), mark, deltas)
        return self.in_flight

    def acknowledge(self) -> None:
        """The flush under way is in the parity."""
        if self.in_flight is None:
            raise RuntimeError("no flush is under way")
        self.settled, self.in_flight = self.in_flight.after, None
        self._frontier = self._next_frontier
        for sealed in self._sealed:
            sealed.clear()

    def as_of(self, point: Point, segment: int, first: int, end: int) -> Image | None:
        """Return rows [first, end) of a segment's part as of a point in the parity; None if it is another point.

        Rows after the end of the part are zeros.
        """
        settled = point == self.settled
        if not settled and (self.in_flight is None or point != self.in_flight.after):
            return None
        view, frontier = self._views[segment], (self._frontier if settled else self._next_frontier)[segment]
        image = Image.zeros(end - first, view.rows.shape[1], view.state.shape[1])
        last = min(end, frontier)
        if first < last:
            view.read_run(first, last, image[: last - first])
            _overlay(image, self._log[segment], first, last)
            if settled:
                _overlay(image, self._sealed[segment], first, last)  # on top: it is older
        return image

    def _add_changes(self, segment: int, log: Batch, delta: Batch) -> None:
        """Add the changes of the logged rows to a delta; their next change has to be noted again."""
        if log.used:
            now = delta.add(log.at)
            self._views[segment].read(log.at.astype(np.int64), now)
            now.add(log.image)
            self._watched[segment][log.at] = True

    def _add_rows(self, segment: int, delta: Batch, free_bytes: int) -> tuple[int, int]:
        """Add rows after the frontier to a delta; return the new frontier, and the bytes of the rows."""
        view, first = self._views[segment], self._frontier[segment]
        row_bytes = 4 * (1 + view.rows.shape[1] + view.state.shape[1]) + 1
        count = free_bytes // row_bytes
        if not count or first == len(view):
            return first, 0
        end = min(first + _LOOKS * count, len(view))
        at = view.touched(first, end)
        if len(at) > count:
            at, end = at[:count], int(at[count])
        if len(at):
            view.read(at, delta.add(at))
        self._watched[segment][first:end] = True
        return end, len(at) * row_bytes

    def _is_end(self, frontier: Sequence[int]) -> bool:
        return all(reached == len(view) for reached, view in zip(frontier, self._views, strict=True))

    def _batches(self) -> tuple[Batch, ...]:
        shapes: Iterator[tuple[int, int, int]] = (
            (view.rows.shape[1], view.state.shape[1], len(view)) for view in self._views
        )
        return tuple(Batch(*shape) for shape in shapes)


def _overlay(image: Image, log: Batch, first: int, last: int) -> None:
    """Copy the rows [first, last) of a log into their image."""
    which = np.flatnonzero((log.at >= first) & (log.at < last))
    image.put(log.at[which].astype(np.int64) - first, log.image, which)
