"""Frames over a non-blocking socket: read as they come in, written as the socket takes them. Used by both ends."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from typing import Any

from cpr_trainer.exchange.frames import HEADER_BYTES, Frame, FrameError, Header

_FIRST_BUFFER_BYTES = 1 << 16
_BUFFERS_PER_CALL = 64  # well below the kernel's IOV_MAX

#: Where the payload of a frame belongs: a writable buffer of its size, or None for the reader's own.
Place = Callable[[Header], memoryview | None]


def nowhere(_header: Header) -> memoryview | None:
    """Leave every payload in the reader's own buffer."""
    return None


class FrameReader:
    """Reads frames from one socket. `limit_bytes` bounds a payload: more is refused before memory is taken."""

    def __init__(self, limit_bytes: int, place: Place = nowhere) -> None:
        self.limit_bytes = limit_bytes
        self._place = place
        self._header_bytes = bytearray(HEADER_BYTES)
        self._own = bytearray()
        self._header: Header | None = None
        self._payload = memoryview(b"")
        self._left = memoryview(self._header_bytes)

    def read(self, connection: socket.socket) -> Frame | None:
        """Return the next frame, None if it is not all there yet.

        Raises FrameError for what is no frame, ConnectionError or another OSError when the connection ends.
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
            self._payload = self._left = self._room(self._header)

    def _room(self, header: Header) -> memoryview:
        size_bytes = header.payload_bytes
        if size_bytes > self.limit_bytes:
            raise FrameError(f"a {header.operation.name} of {size_bytes} bytes is over the limit of {self.limit_bytes}")
        place = self._place(header) if size_bytes else None
        if place is not None:
            if place.nbytes != size_bytes:
                raise FrameError(f"a {header.operation.name} of {size_bytes} bytes, expected {place.nbytes}")
            return place
        if len(self._own) < size_bytes:
            # Payloads of many sizes come; whose limit is low gets no more than that.
            self._own = bytearray(max(size_bytes, min(_FIRST_BUFFER_BYTES, self.limit_bytes)))
        return memoryview(self._own)[:size_bytes]


class FrameWriter:
    """Sends frames over one socket, in order. Payloads are not copied: they must stay as they are until sent."""

    def __init__(self) -> None:
        self._waiting: deque[memoryview] = deque()

    @property
    def idle(self) -> bool:
        """Whether all is sent."""
        return not self._waiting

    def add(self, header: Header, *payload: Any) -> None:
        """Queue a frame. payload: contiguous buffers whose sizes add up to the header's."""
        self._waiting.append(memoryview(header.pack()))
        self._waiting.extend(view for part in payload if (view := memoryview(part)).nbytes)

    def flush(self, connection: socket.socket) -> None:
        """Send as much as the socket takes now. Raises OSError when the connection is broken."""
        while self._waiting:
            batch = [self._waiting[i] for i in range(min(len(self._waiting), _BUFFERS_PER_CALL))]
            try:
                sent = connection.sendmsg(batch)
            except BlockingIOError:
                return
            self._forget(sent)

    def _forget(self, sent: int) -> None:
        while self._waiting and sent >= self._waiting[0].nbytes:
            sent -= self._waiting.popleft().nbytes
        if sent:
            self._waiting[0] = self._waiting[0].cast("B")[sent:]
