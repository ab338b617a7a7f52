"""The changes of a shard that parity lacks: a stream for each of its parts, and flushes of all at the same moment.

Flushes have the same numbers for all parts, and the next one waits for the holders of all. When a shard is lost, its
holders have the last flush or the one before it, and a holder can undo its last one: all parts can be read as of one
moment.
"""

from __future__ import annotations

from collections.abc import Sequence

from cpr_trainer.arrays import Ints
from cpr_trainer.embedding.arena import Arena
from cpr_trainer.parity.coding import Image, Parts, View
from cpr_trainer.parity.flush import Flush, Point
from cpr_trainer.parity.stream import Stream


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
        """Log the rows in these slots (int64 [n], distinct; ascending with several segments) before their change."""
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
        self.number, self.protected = points[0].number, mark
        for stream, point in zip(self._streams, points, strict=True):
            stream.adopt(point)

    def as_of(self, part: int, point: Point, segment: int, rows: range) -> Image | None:
        """See `Stream`; rows: consecutive rows of a segment's part."""
        return self._streams[part].as_of(point, segment, rows.start, rows.stop)
