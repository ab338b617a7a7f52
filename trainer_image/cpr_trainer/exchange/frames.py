"""The frames between trainers and shards, and their transport over a non-blocking socket.

Payloads, little-endian: LOOKUP row numbers [count]; VECTORS values [count, D]; PUSH row numbers [count], then gradients
[count, D] (see `encoding`); HELLO, CHALLENGE and PROOF JSON (see `handshake`); ERROR text;
between shards see `parity.messages`. Rows are sent as row numbers
(see `Placement`), never as slots, so the bytes do not depend on the number of shards. If tables have several dims,
rows come in the order of their places, and so band after band, and values are a block [k, D] for each band.
"""

from __future__ import annotations

import enum
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from cpr_trainer.runtime import Stream

MAGIC = b"CPRF"
PROTOCOL_VERSION = 4
_RESERVED = 0

_LAYOUT = struct.Struct("<4sHBBIIIiqqqqqqIIQqq")
HEADER_BYTES = _LAYOUT.size

_FIRST_BUFFER_BYTES = 1 << 16
_BUFFERS_PER_CALL = 64  # well below the kernel's IOV_MAX


class FrameError(ValueError):
    """The peer sent bytes that are no frame, or a frame out of order: the connection is closed."""


class Operation(enum.IntEnum):
    """The kind of a frame."""

    HELLO = 1  # trainer: its identity, and the one that it expects
    CHALLENGE = 2  # shard: its identity, and a proof that it has the key
    PROOF = 3  # trainer: its proof
    WELCOME = 4  # shard: the proof holds
    LOOKUP = 5  # trainer: requests rows; answered by VECTORS or NOT_READY with the same ticket
    VECTORS = 6  # shard: the requested rows
    PUSH = 7  # trainer: gradients of a step
    ACK = 8  # shard: all pushes of this rank up to `step` are applied
    PING = 9  # trainer: heartbeat, and a query whether the shard is ready; `step` is the announced end of a replay
    PONG = 10  # shard: ready in the generation of the header
    STALE = 11  # shard: the sender's roster is older than its own
    NOT_READY = 12  # shard: a PONG follows once it is ready
    ERROR = 13  # either: the reason why the connection is closed
    COMMIT = 19  # trainer: all steps up to `step` are complete on its side (see `shard.steps`)
    RECEIVED = 20  # shard: the rank's contribution to `step` is held, or applied
    FLUSH = 14  # between shards, as all below: changes of the sender's rows, for the receiver's parity
    QUERY_POSITION = 15  # requests the position of the sender's rows in the receiver's parity
    POSITION = 16  # that position; answers FLUSH and QUERY_POSITION
    READ = 17  # requests rows of the receiver's parity, or of the receiver as they are in another parity
    ROWS = 18  # the requested rows


class Header(NamedTuple):
    """The fixed part of a frame. There are thousands a second, and a tuple is made several times faster than an object.

    Its fields are in the order of the layout. `roster`, `group` and `generation` are the sender's counters, `rank` is
    the trainer's, in both directions. `step` is the step of a lookup or push; in ACK, PONG and WELCOME the last step of
    this rank that is applied. From trainers `cut_step` is the next cut (0: none) and `total_samples` the size of the
    job; from shards `saved_*` are of the last committed save, and `cut_step` is the last cut that was given up (0:
    none). `row_updates` counts the rows in all pushes of this rank to this shard: in PUSH those of earlier steps, in
    answers those up to `step`. `ticket` assigns an answer to its lookup. `count` counts rows, and in WELCOME the
    processes of the shard's incarnation; in ACK and PONG it is 1 while the store has no space for the save in progress.
    `order` is the place of a push among those of all ranks: in ACK that of `step`, in PUSH the one that another
    incarnation assigned; 0: none. In PONG of merged steps it is the first step that `row_updates` does not count; 0:
    none. In COMMIT it is the first step whose push this rank can send, and `row_updates` counts those up to `step`;
    with a `count` of 1 it is for all ranks, because the job stops. RECEIVED has the `ticket` of its push.
    `protected_step` is the last step that the parity at other shards holds of every rank; -1: none.
    """

    operation: Operation
    roster: int = 0
    group: int = 0
    generation: int = 0
    rank: int = 0
    step: int = 0
    cut_step: int = 0
    saved_step: int = 0
    saved_samples: int = 0
    total_samples: int = 0
    row_updates: int = 0
    ticket: int = 0
    count: int = 0  # type: ignore[assignment]  # in the place of a method of tuples
    payload_bytes: int = 0
    order: int = 0
    protected_step: int = -1

    def pack(self) -> bytes:
        """Return the header's bytes, `HEADER_BYTES` long."""
        return _LAYOUT.pack(MAGIC, PROTOCOL_VERSION, self.operation, _RESERVED, *self[1:])

    @classmethod
    def unpack(cls, data: bytes | bytearray | memoryview) -> Self:
        """Read a header; raises FrameError if it is none, or of another protocol version."""
        magic, version, operation, reserved, *rest = _LAYOUT.unpack(data)
        if magic != MAGIC or reserved != _RESERVED:
            raise FrameError(f"not a frame: it begins with {bytes(data[:8])!r}")
        if version != PROTOCOL_VERSION:
            raise FrameError(f"the peer speaks version {version} of the protocol, not {PROTOCOL_VERSION}")
        try:
            return cls(Operation(operation), *rest)
        except ValueError as error:
            raise FrameError(str(error)) from error


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """A frame as received. The payload is valid until the next frame is read from the same connection."""

    header: Header
    payload: memoryview

    def detached(self) -> Frame:
        """Return the frame with a payload of its own."""
        return Frame(self.header, memoryview(bytearray(self.payload)))


#: Returns the buffer for the payload of a frame: writable and of its size, or None for the reader's own.
Place = Callable[[Header], memoryview | None]


class FrameReader:
    """Reads frames from one non-blocking socket. A payload above `limit_bytes` is refused before memory is taken."""

    def __init__(self, limit_bytes: int, place: Place = lambda _header: None) -> None:
        self.limit_bytes = limit_bytes
        self._place = place
        self._header_bytes = bytearray(HEADER_BYTES)
        self._own = bytearray()
        self._header: Header | None = None
        self._payload = memoryview(b"")
        self._left = memoryview(self._header_bytes)

    def read(self, connection: Stream) -> Frame | None:
        """Return the next frame, None if it is not complete yet.

        Raises FrameError for bytes that are no frame, ConnectionError or another OSError when the connection ends.
        """
        while True:
            while self._left:
                try:
                    received = connection.recv_into(self._left)
                except BlockingIOError:
                    return None
                if not received:
                    raise ConnectionResetError("the peer closed the connection")
                self._left = self._left[received:]
            if self._header is not None:
                frame = Frame(self._header, self._payload)
                self._header, self._left = None, memoryview(self._header_bytes)
                return frame
            self._header = Header.unpack(self._header_bytes)
            self._payload = self._left = self._buffer_for(self._header)

    def _buffer_for(self, header: Header) -> memoryview:
        size_bytes = header.payload_bytes
        if size_bytes > self.limit_bytes:
            raise FrameError(f"a {header.operation.name} of {size_bytes} bytes is over the limit of {self.limit_bytes}")
        place = self._place(header) if size_bytes else None
        if place is not None:
            if place.nbytes != size_bytes:
                raise FrameError(f"a {header.operation.name} of {size_bytes} bytes, expected {place.nbytes}")
            return place
        if len(self._own) < size_bytes:
            # Payloads have many sizes. An unauthenticated peer's limit is low, and so is its buffer.
            self._own = bytearray(max(size_bytes, min(_FIRST_BUFFER_BYTES, self.limit_bytes)))
        return memoryview(self._own)[:size_bytes]


class FrameWriter:
    """Sends frames over one non-blocking socket, in order. Payloads are not copied: do not change them before."""

    def __init__(self) -> None:
        self._waiting: deque[memoryview] = deque()

    @property
    def idle(self) -> bool:
        """True if all is sent."""
        return not self._waiting

    def add(self, header: Header, *payload: Any) -> None:
        """Queue a frame. payload: contiguous buffers; their sizes add up to the header's."""
        self._waiting.append(memoryview(header.pack()))
        self._waiting.extend(view for part in payload if (view := memoryview(part)).nbytes)

    def flush(self, connection: Stream) -> None:
        """Send as much as the socket takes now. Raises OSError if the connection is broken."""
        while self._waiting:
            batch = [self._waiting[i] for i in range(min(len(self._waiting), _BUFFERS_PER_CALL))]
            try:
                sent = connection.sendmsg(batch)
            except BlockingIOError:
                return
            while self._waiting and sent >= self._waiting[0].nbytes:
                sent -= self._waiting.popleft().nbytes
            if sent:
                self._waiting[0] = self._waiting[0].cast("B")[sent:]
