"""Frames on a trainer's control connection: a fixed header and an optional payload.

    magic 4s | version u8 | kind u8 | rank u16 | step i64 | cut_step i64 | payload bytes u64      (big-endian, 32 bytes)

A connection belongs to exactly one meeting of a group, so frames need not carry the roster's counters: they are in the
hello that opens the connection.
"""

from __future__ import annotations

import enum
import socket
import struct
from dataclasses import dataclass, replace
from time import monotonic

VERSION = 1
_MAGIC = b"CPRT"
_HEADER = struct.Struct("!4sBBHqqQ")
HEADER_BYTES = _HEADER.size
#: Larger announcements are noise, not frames: a dense state of 4 G parameters is not trained by replication.
_MAX_PAYLOAD_BYTES = 2**35


class Kind(enum.IntEnum):
    """What a frame says; the comment names who sends it."""

    HELLO = 1  # follower: a `Hello`
    FETCH = 2  # leader: send me your dense state
    STATE = 3  # either: a dense state as safetensors, of step `step`
    FORM = 4  # leader: build the process group; the payload is a `Form`
    # Without lockstep READY and GO are about a halt: who stands after `step` (-1: trains), and where all are to stand.
    READY = 5  # follower: about to need the group for `step`
    GO = 6  # leader: all are ready; `step` is the largest that was named, `cut_step` the announced cut (0: none)
    PING = 7  # either: alive
    DONE = 8  # leader: the final anchor is committed
    REFUSED = 9  # leader: a newer incarnation of you is in my roster
    PROVE = 10  # either: a document of the handshake
    ENTRY = 14  # follower: its `Entry` of the rendezvous. leader: the `Entries` of all
    # The rest without lockstep (`trainer.async_sync`):
    COPY = 11  # follower: its dense parameters after `step`
    TARGET = 12  # leader: what to blend towards, and every rank's steps
    SCORES = 13  # follower: what it scored up to `step`. leader: so much of yours came, or the scores of all


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


def header_of(frame: Frame) -> bytes:
    """Return the header's bytes."""
    return _HEADER.pack(_MAGIC, VERSION, frame.kind, frame.rank, frame.step, frame.cut_step, len(frame.payload))


def parse_header(header: bytes | bytearray) -> tuple[Frame, int]:
    """Return the frame without its payload, and the payload's length. Raises ProtocolError."""
    magic, version, kind, rank, step, cut_step, length = _HEADER.unpack(header)
    if magic != _MAGIC or version != VERSION or kind not in set(Kind):
        raise ProtocolError(f"not a control frame: {bytes(header)!r}")
    return Frame(Kind(kind), rank, step, cut_step), length


def send_frame(connection: socket.socket, frame: Frame) -> None:
    """Send one frame; raises OSError."""
    connection.sendall(header_of(frame))
    if frame.payload:
        connection.sendall(frame.payload)


def receive_frame(
    connection: socket.socket, *, limit_bytes: int = _MAX_PAYLOAD_BYTES, deadline: float | None = None
) -> Frame:
    """Wait for one frame; raises OSError when the connection ends, ProtocolError for a payload above the limit.

    Raises TimeoutError if it is not all there at `deadline`, a point of `monotonic`. Without one this waits for ever: a
    silent peer is reported, not cut off.
    """
    frame, length = parse_header(_receive_exactly(connection, HEADER_BYTES, deadline))
    if length > limit_bytes:
        raise ProtocolError(f"a payload of {length} bytes")
    if not length:
        return frame
    return replace(frame, payload=_receive_exactly(connection, length, deadline))


def _receive_exactly(connection: socket.socket, size_bytes: int, deadline: float | None) -> bytearray:
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
