"""Serves other shards: applies their flushes to the parity, and returns rows. No sockets.

Only the thread that changes the rows calls this, so each answer is of one moment.
"""

from __future__ import annotations

from typing import Any, Protocol

from cpr_trainer.exchange.frames import Frame, FrameError, Header, Operation
from cpr_trainer.parity.coding import Image, Ring
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
from cpr_trainer.parity.parity_store import ParityStore


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
