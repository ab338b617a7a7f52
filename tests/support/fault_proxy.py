"""A TCP proxy that does to the requests of a store what networks, load balancers and dying servers do."""

from __future__ import annotations

import contextlib
import re
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

_CHUNK_BYTES = 64 << 10
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Cut:
    """The connection breaks (RST) after a number of bytes of the request, or of the answer."""

    request_bytes: int | None = None
    answer_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Truncate:
    """The answer ends, in good order, after a number of bytes."""

    answer_bytes: int


@dataclass(frozen=True, slots=True)
class Stall:
    """Nothing goes through any more after a number of bytes of the answer, and nothing ends."""

    answer_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Flip:
    """One byte of the request, or of the answer, arrives as another: the one after a number of bytes."""

    request_bytes: int | None = None
    answer_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Slow:
    """Both ways at this rate."""

    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Answer:
    """The proxy answers in the server's place, when it has read the request, and closes.

    Only the end of the connection ends an answer without a length. `sent_bytes` of the body are sent, None for all.
    """

    status: int
    body: bytes = b""
    headers: tuple[str, ...] = ()
    has_length: bool = True
    sent_bytes: int | None = None


Fault = Cut | Truncate | Stall | Flip | Slow | Answer


@dataclass(eq=False)
class FaultProxy:
    """Forwards to `upstream` (host:port) what comes in at `address`. Each injected fault meets one request.

    Requests are told apart by turns: one begins when the client sends after the server did.
    """

    upstream: str
    seen: int = 0
    _faults: deque[Fault] = field(default_factory=deque)
    _open: set[socket.socket] = field(default_factory=set)
    _listener: socket.socket | None = None
    _port: int = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def inject(self, *faults: Fault) -> None:
        """Let the next requests, in this order, meet these faults."""
        self._faults.extend(faults)

    def up(self) -> None:
        """Listen; again at the same port after `down`."""
        listener = socket.create_server(("127.0.0.1", self._port))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _CHUNK_BYTES)  # what is sent has arrived, nearly
        self._port = listener.getsockname()[1]
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def down(self) -> None:
        """Refuse connections, and break those that there are."""
        if self._listener:
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            self._listener.close()
            self._listener = None
        for one in tuple(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=self._connection, args=(client,), daemon=True).start()

    def _connection(self, client: socket.socket) -> None:
        host, _, port = self.upstream.partition(":")
        with client, contextlib.suppress(OSError), socket.create_connection((host, int(port))) as server:
            ends = {client, server}
            self._open |= ends
            try:
                self._requests(client, server)
            finally:
                self._open -= ends

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        fault: Fault | None = None
        request = answer = 0
        is_server_sending, began = True, 0.0
        while True:
            for source in select.select([client, server], [], [])[0]:
                data = source.recv(_CHUNK_BYTES)
                if not data:
                    return
                if source is server:
                    if not is_server_sending:
                        is_server_sending, began = True, time.monotonic()
                    answer = self._pass(data, client, client, fault, answer, _answer_limit(fault))
                    _pace(fault, began, answer)
                    continue
                if is_server_sending:
                    is_server_sending, began, request, answer = False, time.monotonic(), 0, 0
                    self.seen += 1
                    fault = self._faults.popleft() if self._faults else None
                    if isinstance(fault, Answer):
                        _reply(client, data, fault)
                        return
                request = self._pass(data, server, client, fault, request, _request_limit(fault))
                _pace(fault, began, request)

    @staticmethod
    def _pass(  # noqa: PLR0913, PLR0917 -- one direction of one connection
        data: bytes, sink: socket.socket, client: socket.socket, fault: Fault | None, passed: int, limit: int | None
    ) -> int:
        """Send as much as the fault allows; return how many bytes went through so far. Raises OSError at the end."""
        if isinstance(fault, Flip):
            if limit is not None and passed <= limit < passed + len(data):
                at = limit - passed
                data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
            sink.sendall(data)
            return passed + len(data)
        allowed = data if limit is None else data[: limit - passed]
        sink.sendall(allowed)
        if limit is not None and passed + len(data) >= limit:
            if isinstance(fault, Cut):
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # RST
            if isinstance(fault, Stall):
                client.recv(1, socket.MSG_PEEK)  # until the client gives up
            raise OSError("the fault ends it")
        return passed + len(data)


@contextlib.contextmanager
def faulty(upstream: str) -> Iterator[FaultProxy]:
    """A proxy before a server, until the context ends."""
    proxy = FaultProxy(upstream)
    proxy.up()
    try:
        yield proxy
    finally:
        proxy.down()


def _pace(fault: Fault | None, began: float, passed: int) -> None:
    """Wait until that many bytes may have gone one way since `began`: a late wake-up shortens the next wait."""
    if isinstance(fault, Slow):
        time.sleep(max(0.0, began + passed / fault.bytes_per_s - time.monotonic()))


def _request_limit(fault: Fault | None) -> int | None:
    return fault.request_bytes if isinstance(fault, Cut | Flip) else None


def _answer_limit(fault: Fault | None) -> int | None:
    return fault.answer_bytes if isinstance(fault, Cut | Truncate | Stall | Flip) else None


def _reply(client: socket.socket, data: bytes, answer: Answer) -> None:
    """Read the rest of a request, then answer it."""
    while b"\r\n\r\n" not in data:
        data += client.recv(_CHUNK_BYTES)
    head, _, body = data.partition(b"\r\n\r\n")
    length = _LENGTH.search(head)
    left = int(length[1]) - len(body) if length else 0
    while left > 0 and (more := client.recv(_CHUNK_BYTES)):
        left -= len(more)
    lines = [f"HTTP/1.1 {answer.status} -", "Connection: close", *answer.headers]
    if answer.has_length:
        lines.append(f"Content-Length: {len(answer.body)}")
    if answer.body and not any(each.startswith("Content-Type") for each in answer.headers):
        lines.append("Content-Type: application/xml")
    client.sendall("\r\n".join((*lines, "", "")).encode() + answer.body[: answer.sent_bytes])
