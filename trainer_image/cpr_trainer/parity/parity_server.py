"""The parity that a shard keeps for others, and its service to them: it applies their flushes, and returns rows.

No sockets. Only the thread that changes the rows calls this, so each answer is of one moment.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

from cpr_trainer.exchange.frames import Frame, FrameError, Header, Operation
from cpr_trainer.parity.coding import Image, Ring
from cpr_trainer.parity.flush import Flush, Moment, Point
from cpr_trainer.parity.journal import Journal
from cpr_trainer.parity.messages import (
    PositionQuery,
    PositionReply,
    Read,
    Rows,
    Shapes,
    document_of,
    most_bytes,
    pack,
    pack_rows,
    unpack_flush,
)


@dataclass(frozen=True, slots=True, eq=False)
class PartPosition:
    """The position of one member's part in a parity: the `point`, and `complete` and `mark` of the flush.

    `last` is that flush, and `former` the position before, while the flush can be undone.
    """

    point: Point
    complete: bool = False
    mark: str = ""
    last: Flush | None = None
    former: PartPosition | None = None


class ParityStore:
    """The parity of one stripe. `build` names it: after a reset to zeros it has another name.

    Names must be unique across processes: make the first one random. Not thread-safe.
    """

    def __init__(self, data_shards: int, shapes: Shapes, build: int) -> None:
        """Allocate parity of `data_shards` parts with these shapes, by segment."""
        self.build = build
        self._shapes = tuple(shapes)
        self._images = self._zeros()
        self._positions = [PartPosition(Point(build))] * data_shards

    @classmethod
    def size_bytes(cls, shapes: Shapes) -> int:
        """Return the memory of a parity."""
        return sum(each.rows * each.row_bytes for each in shapes)

    def position(self, part: int) -> PartPosition:
        """Return the position of the `part`-th member's part."""
        return self._positions[part]

    @property
    def points(self) -> tuple[Point, ...]:
        """The points of all members' parts."""
        return tuple(position.point for position in self._positions)

    def take(self, part: int, flush: Flush) -> None:
        """Apply a member's flush to the parity.

        A flush that is applied already, or belongs to an earlier build, is ignored. One that does not follow the
        applied ones resets the parity, because the member's part cannot be removed from it. `position` shows the
        outcome. Raises ValueError for a flush of rows that do not exist.
        """
        position = self._positions[part]
        if len(flush.deltas) != len(self._images):
            raise ValueError(f"a flush has {len(flush.deltas)} segments, and this parity {len(self._images)}")
        for image, delta in zip(self._images, flush.deltas, strict=True):
            change = delta.change
            fits = change.rows.shape[1:] == image.rows.shape[1:] and change.state.shape[1:] == image.state.shape[1:]
            if not fits or (len(delta.at) and int(delta.at.max()) >= len(image)):
                raise ValueError("a flush has rows that this parity does not have")
        if flush.before.build != self.build or flush.after == position.point:
            return
        if flush.before != position.point:
            self.reset()
            return
        self._add(flush)
        former = replace(position, last=None, former=None)
        self._positions[part] = PartPosition(flush.after, flush.complete, flush.mark, flush, former)

    def undo(self, part: int, moment: Moment) -> bool:
        """Go back to a member's flush of a moment, its last or the one before; return whether that is possible."""
        position = self._positions[part]
        if position.point.moment == moment:
            return True
        if position.last is None or position.former is None or position.former.point.moment != moment:
            return False
        assert position.last.before == position.former.point, "the last flush does not follow the former point"
        self._add(position.last)
        self._positions[part] = position.former
        return True

    def reset(self) -> None:
        """Reset the parity to zeros: all members have to send their parts again."""
        self.build += 1
        self._positions = [PartPosition(Point(self.build))] * len(self._positions)
        self._images = ()  # freed first: there is no memory for two
        self._images = self._zeros()

    def read(self, segment: int, first: int, end: int) -> Image:
        """Return a copy of some rows, which belongs to the current `points`."""
        return self._images[segment][first:end].copy()

    def _zeros(self) -> tuple[Image, ...]:
        """Return new memory, which flushes touch later: clearing old memory would delay trainers."""
        return tuple(Image.zeros(*shape) for shape in self._shapes)

    def _add(self, flush: Flush) -> None:
        for image, delta in zip(self._images, flush.deltas, strict=True):
            image.add_at(delta.at, delta.change)


class Caller(Protocol):
    """The connection of another shard. `rank` is its index."""

    @property
    def rank(self) -> int:
        """The index of the calling shard."""

    def send(self, header: Header, *payload: Any) -> None:
        """Send a frame; never blocks, never raises."""


class ParityServer:
    """Serves the neighbours of shard `index`. `generation` is that of its rows, None while it has none."""

    def __init__(self, ring: Ring, index: int, shapes: Shapes, store: ParityStore, journal: Journal) -> None:
        self.generation: int | None = None
        self._ring = ring
        self._index = index
        self._shapes = shapes
        self._store = store
        self._journal = journal

    @property
    def limit_bytes(self) -> int:
        """The limit of a frame's payload."""
        return most_bytes(self._shapes)

    def on_frame(self, caller: Caller, frame: Frame) -> None:
        """Answer one frame. Raises FrameError for an invalid one."""
        if frame.header.generation != self.generation:
            # One of the two has not seen a rollback yet. The caller repeats the request.
            caller.send(Header(Operation.NOT_READY, generation=self.generation or 0))
            return
        match frame.header.operation:
            case Operation.FLUSH:
                part = self._part_of(caller)
                try:
                    self._store.take(part, unpack_flush(frame, self._shapes))
                except ValueError as error:
                    raise FrameError(str(error)) from error
                self._send_position(caller, part)
            case Operation.QUERY_POSITION:
                part = self._part_of(caller)
                query = document_of(PositionQuery, frame)
                if query.moment is not None:
                    self._store.undo(part, query.moment)
                self._send_position(caller, part)
            case Operation.READ:
                self._read(caller, document_of(Read, frame))
            case operation:
                raise FrameError(f"a shard does not send {operation.name}")

    def _part_of(self, caller: Caller) -> int:
        members = self._ring.members(self._index)
        if caller.rank not in members:
            raise FrameError(f"shard {self._index} keeps no parity for shard {caller.rank}")
        return members.index(caller.rank)

    def _send_position(self, caller: Caller, part: int) -> None:
        mine = self._store.position(part)
        former = None if mine.former is None else mine.former.point.moment
        position = PositionReply(mine.point, mine.complete, mine.mark, former)
        header, payload = pack(Operation.POSITION, self.generation or 0, position)
        caller.send(header, *payload)

    def _read(self, caller: Caller, request: Read) -> None:
        if not (0 <= request.segment < len(self._shapes) and 0 <= request.part < self._ring.data_shards):
            raise FrameError(f"no segment {request.segment} of part {request.part}")
        if not 0 <= request.first <= request.end <= self._shapes[request.segment][0]:
            raise FrameError(f"no rows [{request.first}, {request.end}) in segment {request.segment}")
        if request.point is None:
            image: Image | None = self._store.read(request.segment, request.first, request.end)
            answer = Rows(known=True, points=self._store.points)
        else:
            rows = range(request.first, request.end)
            image = self._journal.as_of(request.part, request.point, request.segment, rows)
            answer = Rows(known=image is not None)
        header, payload = pack_rows(self.generation or 0, answer, image)
        caller.send(header, *payload)
