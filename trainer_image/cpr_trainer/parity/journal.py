"""The changes of a shard that parity lacks: a stream for each of its parts, and flushes of all at the same moment.

Flushes have the same numbers for all parts, and the next one waits for the holders of all. When a shard is lost, its
holders have the last flush or the one before it, and a holder can undo its last one: all parts can be read as of one
moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import le

import numpy as np
from numpy.typing import NDArray

from cpr_trainer.arrays import Ints
from cpr_trainer.embedding.arena import Arena
from cpr_trainer.parity.coding import Image, Parts, View
from cpr_trainer.parity.flush import Batch, Delta, Flush, Moment, Point

#: Rows that are checked for changes, for each one that fits into a flush.
_CHECKED_ROWS = 16


class Journal:
    """The streams of one shard, by part. Only the thread that changes the rows uses it. `author` names this process.

    `number` is that of the last sealed flush. `protected` is the mark of the newest flush after which all holders had
    the whole shard; None before the first one. It stays when a holder is lost, `intact` does not.
    """

    def __init__(self, arena: Arena, parts: Parts, author: int) -> None:
        self.author = author
        self.number = 0
        self.protected: str | None = None
        self._arena = arena
        self._sizes = parts.sizes
        self._streams = tuple(
            Stream([View.of_part(arena, parts, part, segment) for segment in range(len(arena.segments))])
            for part in range(parts.data_shards)
        )

    @property
    def intact(self) -> bool:
        """True if all parts are in their parity, as of `protected` or later."""
        return all(stream.complete for stream in self._streams)

    @property
    def has_parity(self) -> bool:
        """True if any part has a parity to be flushed to."""
        return any(stream.settled is not None for stream in self._streams)

    @property
    def building(self) -> bool:
        """True if a parity has only some of its part so far."""
        return any(stream.settled is not None and not stream.complete for stream in self._streams)

    @property
    def in_flight(self) -> bool:
        """True if a holder has not answered yet: nothing may be sealed."""
        return any(stream.in_flight is not None for stream in self._streams)

    @property
    def pending_bytes(self) -> int:
        """The size of the changes for the next flush."""
        return sum(stream.pending_bytes for stream in self._streams)

    def note(self, slots: Ints) -> None:
        """Log the rows in these slots (int64 [n], distinct, segment after segment) before their change."""
        bounds = self._arena.bounds(slots)
        for segment, (mine, size) in enumerate(zip(self._arena.segments, self._sizes, strict=True)):
            at = mine.within(slots[bounds[segment] : bounds[segment + 1]])
            if len(self._streams) == 1:
                self._streams[0].note(segment, at)
            elif len(at):
                parts = at // size
                for part, stream in enumerate(self._streams):
                    stream.note(segment, at[parts == part] - part * size)

    def seal(self, mark: str, most_bytes: int) -> dict[int, Flush]:
        """Return the next flush of each part that has a parity; `mark` is the current progress of the rows.

        In addition to changes they have rows that a parity lacks, of about `most_bytes` in all.
        """
        self.number += 1
        share = most_bytes // len(self._streams)
        moment = (self.author, self.number)
        sealed = ((part, each.seal(moment, mark, share)) for part, each in enumerate(self._streams))
        return {part: flush for part, flush in sealed if flush is not None}

    def on_position(self, part: int, point: Point) -> Flush | None:
        """Handle the position of a part in its parity; return the flush that the holder lacks.

        A new parity, or one at another point, gets the part from the start.
        """
        stream = self._streams[part]
        if stream.in_flight is not None and point == stream.in_flight.after:
            mark = stream.in_flight.mark
            stream.acknowledge()
            if self.intact and not self.in_flight:
                self.protected = mark
        elif point != stream.settled:
            # If it has flushes of an earlier process, our first one resets it.
            stream.begin(point.build)
        return stream.in_flight

    def drop_parity(self, part: int) -> None:
        """Continue without the parity of a part: it is lost, or its holder does not answer."""
        self._streams[part].begin(None)

    def reset(self) -> None:
        """Continue without any parity: the rows are about to be loaded."""
        self.protected = None
        for stream in self._streams:
            stream.begin(None)

    def adopt(self, points: Sequence[Point], mark: str) -> None:
        """Continue from rows that were rebuilt at these points, by part: all of one moment, with this mark."""
        assert len({point.moment for point in points}) == 1, f"rows rebuilt as of several moments: {points}"
        self.number, self.protected = points[0].number, mark
        for stream, point in zip(self._streams, points, strict=True):
            stream.adopt(point)

    def as_of(self, part: int, point: Point, segment: int, rows: range) -> Image | None:
        """See `Stream`; rows: consecutive rows of a segment's part."""
        return self._streams[part].as_of(point, segment, rows.start, rows.stop)


class Stream:
    """The stream of a part's changes to the holder of its parity. Not thread-safe.

    Before a row changes it is *noted*: its bits in the parity are logged, once until the next flush. A flush has the
    XOR of the logged and the current bits. Its log stays while it is in flight, in addition to the next one, so the
    rows can be read as they are in the parity, with and without the flush. A new parity gets the part in pieces: rows
    from the *frontier* on are not in it yet, and count as zeros.

    `settled` is the acknowledged point in the parity, None without a parity. `in_flight` is the flush that it may have
    in addition.
    """

    def __init__(self, views: Sequence[View]) -> None:
        """`views` are the rows of the part, segment after segment."""
        self.settled: Point | None = None
        self.in_flight: Flush | None = None
        self._views = tuple(views)
        # True for rows that equal those in the parity, so that their next change has to be noted.
        self._in_parity: tuple[NDArray[np.bool_], ...] = tuple(np.zeros(len(view), np.bool_) for view in views)
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
        for in_parity, log, sealed in zip(self._in_parity, self._log, self._sealed, strict=True):
            in_parity[:] = False
            log.used = 0
            sealed.used = 0

    def adopt(self, point: Point) -> None:
        """Start with a parity that has the current rows of the whole part, at this point."""
        self.begin(point.build)
        self.settled = point
        self._frontier = self._next_frontier = tuple(map(len, self._views))
        for in_parity in self._in_parity:
            in_parity[:] = True

    def note(self, segment: int, at: Ints) -> None:
        """Log these rows of a segment's part (int64 [n], distinct) before their change."""
        mine = at[self._in_parity[segment][at]]
        if len(mine):
            self._views[segment].read(mine, self._log[segment].add(mine))
            self._in_parity[segment][mine] = False

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
            self._log[segment].used = 0
            delta = self._scratch[segment]
            delta.used = 0
            if log.used:  # the next change of these rows has to be noted again
                now = delta.add(log.at)
                self._views[segment].read(log.at.astype(np.int64), now)
                now.add(log.image)
                self._in_parity[segment][log.at] = True
            reached, added = self._add_rows(segment, delta, free_bytes)
            free_bytes = max(free_bytes - added, 0)
            frontier.append(reached)
        assert all(map(le, self._frontier, frontier)), f"frontier {self._frontier} went back to {frontier}"
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
            sealed.used = 0

    def as_of(self, point: Point, segment: int, first: int, end: int) -> Image | None:
        """Return rows [first, end) of a segment's part as of a point in the parity; None if it is another point.

        Rows after the end of the part are zeros.
        """
        settled = point == self.settled
        if not settled and (self.in_flight is None or point != self.in_flight.after):
            return None
        view, frontier = self._views[segment], (self._frontier if settled else self._next_frontier)[segment]
        image = view.zeros(end - first)
        last = min(end, frontier)
        if first < last:
            view.read_run(first, last, image[: last - first])
            _overlay(image, self._log[segment], first, last)
            if settled:
                _overlay(image, self._sealed[segment], first, last)  # on top: it is older
        return image

    def _add_rows(self, segment: int, delta: Batch, free_bytes: int) -> tuple[int, int]:
        """Add rows after the frontier to a delta; return the new frontier, and the bytes of the rows."""
        view, first = self._views[segment], self._frontier[segment]
        row_bytes = np.dtype(np.uint32).itemsize + view.shape.row_bytes
        count = free_bytes // row_bytes
        if not count or first == len(view):
            return first, 0
        end = min(first + _CHECKED_ROWS * count, len(view))
        at = view.touched(first, end)
        if len(at) > count:
            at, end = at[:count], int(at[count])
        if len(at):
            view.read(at, delta.add(at))
        self._in_parity[segment][first:end] = True
        return end, len(at) * row_bytes

    def _is_end(self, frontier: Sequence[int]) -> bool:
        return all(reached == len(view) for reached, view in zip(frontier, self._views, strict=True))

    def _batches(self) -> tuple[Batch, ...]:
        return tuple(Batch(view.shape) for view in self._views)


def _overlay(image: Image, log: Batch, first: int, last: int) -> None:
    """Copy the rows [first, last) of a log into their image."""
    which = np.flatnonzero((log.at >= first) & (log.at < last))
    image.put(log.at[which].astype(np.int64) - first, log.image, which)
