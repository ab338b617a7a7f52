"""Control connections between trainers: frames on the wire, and the channels that carry them.

A frame is a fixed header and an optional payload:

    magic 4s | version u8 | kind u8 | rank u16 | step i64 | cut_step i64 | payload bytes u64      (big-endian, 32 bytes)

A connection belongs to one (group, generation), so frames do not carry the roster's counters: the hello that opens the
connection has them. A thread for each connection reads frames into an inbox, which the main thread empties while it
waits.
"""

from __future__ import annotations

import enum
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from time import monotonic

from cpr_trainer.runtime import Stream

VERSION = 1
_MAGIC = b"CPRT"
_HEADER = struct.Struct("!4sBBHqqQ")
HEADER_BYTES = _HEADER.size
#: Longer payloads are rejected as garbage: 32 GiB is a dense state of several billion parameters.
_MAX_PAYLOAD_BYTES = 2**35
#: Limit of the whole handshake, however slowly the other side sends.
_HANDSHAKE_S = 3.0

#: Proves the job's key to the other side of a new connection and checks its proof, until a time of `monotonic`. Raises
#: OSError if that fails.
Authenticate = Callable[[Stream, float], None]


class Kind(enum.IntEnum):
    """Kind of a frame; the comment names its sender."""

    HELLO = 1  # follower: a `Hello`
    FETCH = 2  # leader: requests the follower's dense state
    STATE = 3  # either: a dense state as safetensors, of step `step`
    FORM = 4  # leader: build the process group; the payload is a `Form`
    # Without lockstep READY and GO are about a barrier: the step that a rank halts after (-1: it trains), and the step
    # at which all halt.
    READY = 5  # follower: ready to use the group for `step`
    GO = 6  # leader: all are ready; `step` is the largest of theirs, `cut_step` the announced cut (0: none)
    PING = 7  # either: heartbeat
    DONE = 8  # leader: the final anchor is committed
    REFUSED = 9  # leader: its roster has a newer incarnation of the receiver
    PROVE = 10  # either: a document of the handshake
    ENTRY = 14  # follower: its `Entry` of the address store. leader: the `Entries` of all
    TUNNEL = 16  # either: `step` is a port of the receiver's process group; the same frame answers it. Bytes follow
    DATA = 15  # leader: `step` is the number of the newest pin of the data, up to which all read
    # Without lockstep only (`trainer.async_sync`):
    COPY = 11  # follower: its dense parameters after `step`
    TARGET = 12  # leader: the target to blend towards, and every rank's steps
    SCORES = 13  # follower: its scores up to `step`. leader: an acknowledgement of them, or the scores of all


class ProtocolError(ConnectionError):
    """The other side does not speak this protocol."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame. `rank` is the sender's."""

    kind: Kind
    rank: int
    step: int = 0
    cut_step: int = 0
    payload: bytes | bytearray = b""


@dataclass(frozen=True, slots=True)
class Received:
    """A frame, or None for the end of an authenticated connection."""

    channel: Channel
    frame: Frame | None


class Inbox:
    """Arrivals of all connections, in order. Any thread may put."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Received] = SimpleQueue()

    def put(self, received: Received) -> None:
        """Append an arrival."""
        self._queue.put(received)

    def take(self, timeout_s: float) -> Received | None:
        """Return the next arrival, None if there is none in time."""
        try:
            return self._queue.get(timeout=timeout_s)
        except Empty:
            return None


class Channel:
    """One connection. `send_s` limits how long a send waits for a peer that does not read.

    `on_settled` is called once, when the connection is authenticated or has ended. `on_tunnel` is called by the
    connection's thread if the other side turns it into a tunnel for this port; the connection ends when it returns.
    """

    def __init__(self, connection: Stream, authenticate: Authenticate, inbox: Inbox, send_s: float) -> None:
        self.last_seen = monotonic()
        self.on_settled: Callable[[], None] = lambda: None
        self.on_tunnel: Callable[[Stream, int], None] = lambda _stream, _port: None
        self._connection = connection
        self._tunnels = False
        self._authenticate = authenticate
        self._inbox = inbox
        self._send_s = send_s
        self._sending = threading.Lock()
        self._settled = threading.Event()

    @property
    def authenticated(self) -> bool:
        """True if the connection is open, and both sides have proved the job's key."""
        return self._settled.is_set() and not self.closed

    @property
    def closed(self) -> bool:
        """True if the connection has ended."""
        return self._connection.fileno() < 0

    def start(self) -> None:
        """Start the thread that authenticates and then reads. Raises OSError if no thread can be started."""
        try:
            threading.Thread(target=self._run, name="control-reader", daemon=True).start()
        except RuntimeError as error:
            self._end()
            raise OSError(f"no thread for a control connection: {error}") from error

    def send(self, frame: Frame) -> bool:
        """Send a frame; return False if the connection has ended, which the inbox reports, too."""
        if not self._settled.wait(_HANDSHAKE_S):
            return False
        try:
            with self._sending:
                if self._tunnels:
                    return False
                send_frame(self._connection, frame)
        except OSError:
            self.close()
            return False
        return True

    def close(self) -> None:
        """End the connection and its thread."""
        with suppress(OSError):  # It may not be connected any more.
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _run(self) -> None:
        try:
            self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._authenticate(self._connection, monotonic() + _HANDSHAKE_S)
            self._connection.settimeout(self._send_s)
            self._settled.set()
            self.on_settled()
            while True:
                frame = receive_frame(self._connection)
                self.last_seen = monotonic()
                if frame.kind is Kind.TUNNEL:
                    self._tunnel(frame)
                self._inbox.put(Received(self, frame))
        except OSError:
            self._end()

    def _tunnel(self, frame: Frame) -> None:
        """Be a tunnel until it ends. Raises ConnectionAbortedError then, and OSError."""
        with self._sending:  # no heartbeat may follow the answer
            send_frame(self._connection, frame)
            self._tunnels = True
        self.on_tunnel(self._connection, frame.step)
        raise ConnectionAbortedError("the tunnel has ended")

    def _end(self) -> None:
        self.close()
        self.on_settled()
        if self._settled.is_set() and not self._tunnels:
            self._inbox.put(Received(self, None))
        else:
            self._settled.set()  # Releases senders that wait for the handshake; they fail on the closed socket.


def send_frame(connection: Stream, frame: Frame) -> None:
    """Send one frame. Raises OSError."""
    connection.sendall(header_of(frame))
    if frame.payload:
        connection.sendall(frame.payload)


def receive_frame(connection: Stream, *, limit_bytes: int = _MAX_PAYLOAD_BYTES, deadline: float | None = None) -> Frame:
    """Return the next frame. Raises OSError at the end of the connection, ProtocolError for a payload above the limit.

    Raises TimeoutError if the frame is not complete at `deadline`, a time of `monotonic`. Without a deadline it waits
    for ever: an unresponsive peer is reported, not cut off.
    """
    header = _receive_exactly(connection, HEADER_BYTES, deadline)
    magic, version, kind, rank, step, cut_step, length = _HEADER.unpack(header)
    if magic != _MAGIC or version != VERSION or kind not in set(Kind):
        raise ProtocolError(f"not a control frame: {bytes(header)!r}")
    if length > limit_bytes:
        raise ProtocolError(f"a payload of {length} bytes")
    payload = _receive_exactly(connection, length, deadline) if length else b""
    return Frame(Kind(kind), rank, step, cut_step, payload)


def header_of(frame: Frame) -> bytes:
    """Return the bytes of a frame's header."""
    return _HEADER.pack(_MAGIC, VERSION, frame.kind, frame.rank, frame.step, frame.cut_step, len(frame.payload))


def _receive_exactly(connection: Stream, size_bytes: int, deadline: float | None) -> bytearray:
    data = bytearray(size_bytes)
    view = memoryview(data)
    while view:
        if deadline is not None:
            left_s = deadline - monotonic()
            if left_s <= 0:
                raise TimeoutError("the other side takes too long")
            connection.settimeout(left_s)
        try:
            received = connection.recv_into(view)
        except TimeoutError:
            continue
        if not received:
            raise ConnectionResetError("the connection was closed")
        view = view[received:]
    return data
