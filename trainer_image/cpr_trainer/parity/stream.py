"""One part of a shard's rows, and what its parity lacks of it.

A row that is about to change is *noted*: the bits that parity has of it are logged, once until the next flush. A flush
carries the XOR of what was logged and what is now. While it is under way its log stays, beside the next one: so the
rows can be told as they are in the parity, with the flush and without it.

A parity that is built anew gets the part bit by bit: rows from the *frontier* on are not in it yet, and count as zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from cpr_trainer.arrays import Ints
from cpr_trainer.parity.coding import Image, View
from cpr_trainer.parity.flush import Batch, Delta, Flush, Moment, Point

#: So many rows that may have changed are looked at for each that finds room in a flush.
_LOOKS = 16


class Stream:
    """What flows from a part to the holder of its parity. One thread.

    `settled` is the point at which the parity is known to stand, None while no parity is known. `in_flight` is the
    flush that it may have as well.
    """

    def __init__(self, views: Sequence[View]) -> None:
        """Take the rows of the part, segment after segment."""
        self.settled: Point | None = None
        self.in_flight: Flush | None = None
        self._views = tuple(views)
        # Whether parity has the row as it is now, so that a change of it has to be noted.
        self._watched: tuple[NDArray[np.bool_], ...] = tuple(np.zeros(len(view), np.bool_) for view in views)
        self._log, self._sealed, self._scratch = (self._batches() for _ in range(3))
        self._frontier = self._next_frontier = (0,) * len(self._views)

    @property
    def complete(self) -> bool:
        """True if the parity is known to have the whole part, as of `settled`."""
        return self.settled is not None and self.settled.number > 0 and self._is_end(self._frontier)

    @property
    def pending_bytes(self) -> int:
        """The size of what the next flush has to tell of changes."""
        return sum(log.nbytes for log in self._log)

    def begin(self, build: int | None) -> None:
        """From here on this parity counts, which has nothing of the part yet; None: none does."""
        self.settled = None if build is None else Point(build)
        if self.in_flight is not None:
            self.in_flight = None
            self._scratch = self._batches()  # whoever still sends the old one shall not send parts of the next
        self._frontier = self._next_frontier = (0,) * len(self._views)
        for watched, log, sealed in zip(self._watched, self._log, self._sealed, strict=True):
            watched[:] = False
            log.clear()
            sealed.clear()

    def adopt(self, point: Point) -> None:
        """The parity has the whole part as it is now, at this point."""
        self.begin(point.build)
        self.settled = point
        self._frontier = self._next_frontier = tuple(map(len, self._views))
        for watched in self._watched:
            watched[:] = True

    def note(self, segment: int, at: Ints) -> None:
        """Log these rows of a segment's part (int64 [n], all different), which are about to change."""
        mine = at[self._watched[segment][at]]
        if len(mine):
            self._views[segment].read(mine, self._log[segment].add(mine))
            self._watched[segment][mine] = False

    def seal(self, moment: Moment, mark: str, most_bytes: int) -> Flush | None:
        """Return the flush of a moment, which is under way from here on; None without a parity.

        It tells all changes up to now. What it adds of rows that are not in the parity yet fits into `most_bytes`, or
        into a half of it after many changes. Its arrays stay as they are until the next one is sealed.
        """
        if self.settled is None:
            return None
        if self.in_flight is not None:
            raise RuntimeError(f"flush {self.in_flight.after.number} is under way")
        self._log, self._sealed = self._sealed, self._log
        room = max(most_bytes - sum(log.nbytes for log in self._sealed), most_bytes // 2)
        frontier = list[int]()
        for segment, log in enumerate(self._sealed):
            self._log[segment].clear()
            delta = self._scratch[segment]
            delta.clear()
            self._add_changes(segment, log, delta)
            reached, added = self._add_rows(segment, delta, room)
            room = max(room - added, 0)
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
        """Return rows [first, end) of a segment's part as the parity has them at a point; None if that is not known.

        Those that the part does not have are zeros.
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
        """Put what has become of the logged rows into a delta; their next change is to be noted again."""
        if log.used:
            now = delta.add(log.at)
            self._views[segment].read(log.at.astype(np.int64), now)
            now.add(log.image)
            self._watched[segment][log.at] = True

    def _add_rows(self, segment: int, delta: Batch, room: int) -> tuple[int, int]:
        """Add rows beyond the frontier to a delta; return how far the frontier is then, and the bytes they take."""
        view, first = self._views[segment], self._frontier[segment]
        row_bytes = 4 * (1 + view.rows.shape[1] + view.state.shape[1]) + 1
        count = room // row_bytes
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
    """Put what a log has of rows [first, last) into their image."""
    which = np.flatnonzero((log.at >= first) & (log.at < last))
    image.put(log.at[which].astype(np.int64) - first, log.image, which)
