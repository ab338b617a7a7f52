"""What parity lacks of a shard: one stream for each of its parts, and flushes of all of them at the same moment.

Flushes are numbered alike for all parts, and the next one waits for the holders of all: so when a shard is lost, its
holders have the last flush or the one before it, and a holder can take back its last one. Whatever is lost in between,
all parts can be had as of one moment.
"""

from __future__ import annotations

from collections.abc import Sequence

from cpr_trainer.arrays import Ints
from cpr_trainer.embedding.arena import Arena
from cpr_trainer.parity.coding import Image, Parts, View
from cpr_trainer.parity.flush import Flush, Point
from cpr_trainer.parity.stream import Stream


class Journal:
    """The streams of one shard, by part. One thread: the one that changes the rows. `author` names this process.

    `number` is that of the last flush that was sealed. `protected` is the mark of the newest flush that all holders are
    known to have had with the whole shard in it; None before there was one. It stays when a holder is lost, `intact`
    does not.
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
        """True if a holder owes an answer: nothing may be sealed."""
        return any(stream.in_flight is not None for stream in self._streams)

    @property
    def pending_bytes(self) -> int:
        """The size of what the next flush has to tell of changes."""
        return sum(stream.pending_bytes for stream in self._streams)

    def note(self, slots: Ints) -> None:
        """The rows in these slots (int64 [n], all different; ascending if there are several segments) will change."""
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
        """Return the next flush of each part that has a parity; `mark` says what the rows stand for now.

        Beside what changed they bring rows that a parity lacks, of about `most_bytes` in all.
        """
        self.number += 1
        share = most_bytes // len(self._streams)
        moment = (self.author, self.number)
        sealed = ((part, each.seal(moment, mark, share)) for part, each in enumerate(self._streams))
        return {part: flush for part, flush in sealed if flush is not None}

    def on_position(self, part: int, point: Point) -> Flush | None:
        """The holder of a part says where its parity stands; return what it has to get (again).

        A parity that is another one than was known, or stands elsewhere, gets the part from the start.
        """
        stream = self._streams[part]
        if stream.in_flight is not None and point == stream.in_flight.after:
            mark = stream.in_flight.mark
            stream.acknowledge()
            if self.intact and not self.in_flight:
                self.protected = mark
        elif point != stream.settled:
            # If it has flushes of a process that is gone, it refuses the first of ours, and is built anew.
            stream.begin(point.build)
        return stream.in_flight

    def drop_parity(self, part: int) -> None:
        """The parity of a part is gone, or its holder does not answer: go on without."""
        self._streams[part].begin(None)

    def reset(self) -> None:
        """Nothing is in any parity, nor protected: the rows are about to be loaded."""
        self.protected = None
        for stream in self._streams:
            stream.begin(None)

    def adopt(self, points: Sequence[Point], mark: str) -> None:
        """The rows are those that parity has at these points, by part: all of one moment, with this mark."""
        self.number, self.protected = points[0].number, mark
        for stream, point in zip(self._streams, points, strict=True):
            stream.adopt(point)

    def as_of(self, part: int, point: Point, segment: int, rows: range) -> Image | None:
        """See `Stream`; rows: some in a row of a segment's part."""
        return self._streams[part].as_of(point, segment, rows.start, rows.stop)
