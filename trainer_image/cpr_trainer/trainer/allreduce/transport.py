"""Control connections between trainers: who is connected, what they said, and when they were last heard.

A thread for each connection reads frames into the process's one inbox, which the main thread empties while it waits.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from time import monotonic

from cpr_trainer.trainer.allreduce.frames import Frame, receive_frame, send_frame

#: Proves the job's key to the other side of a fresh connection, and asks for its proof, until a point of `monotonic`.
#: Raises OSError if it fails.
Authenticate = Callable[[socket.socket, float], None]

#: The whole handshake takes no longer, however slowly the other side sends.
_HANDSHAKE_S = 3.0


@dataclass(frozen=True, slots=True)
class Received:
    """A frame, or None for the end of a connection on which both sides had proved the key."""

    channel: Channel
    frame: Frame | None


class Inbox:
    """What arrived on all connections, in order."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Received] = SimpleQueue()

    def put(self, received: Received) -> None:
        """Append; any thread may call it."""
        self._queue.put(received)

    def take(self, timeout_s: float) -> Received | None:
        """Return the next arrival, None if there is none in time."""
        try:
            return self._queue.get(timeout=timeout_s)
        except Empty:
            return None


class Channel:
    """One connection. `send_s` bounds how long a send may wait for a peer that does not read."""

    def __init__(self, connection: socket.socket, authenticate: Authenticate, inbox: Inbox, send_s: float) -> None:
        self.last_seen = monotonic()
        self.on_settled: Callable[[], None] = lambda: None  # called once, when the proof held or the connection ended
        self._connection = connection
        self._authenticate = authenticate
        self._inbox = inbox
        self._send_s = send_s
        self._sending = threading.Lock()
        self._proven = threading.Event()

    @property
    def proven(self) -> bool:
        """Whether both sides have proved the job's key."""
        return self._proven.is_set() and not self.closed

    @property
    def closed(self) -> bool:
        """Whether the connection has ended."""
        return self._connection.fileno() < 0

    def start(self) -> None:
        """Start the thread that authenticates and then reads. Raises OSError if there can be no more threads."""
        try:
            threading.Thread(target=self._run, name="control-reader", daemon=True).start()
        except RuntimeError as error:
            self._end()
            raise OSError(f"no thread for a control connection: {error}") from error

    def send(self, frame: Frame) -> bool:
        """Send; False if the connection is gone (the inbox tells that too)."""
        if not self._proven.wait(_HANDSHAKE_S):
            return False
        try:
            with self._sending:
                send_frame(self._connection, frame)
        except OSError:
            self.close()
            return False
        return True

    def close(self) -> None:
        """End the connection; its reader ends too."""
        with suppress(OSError):  # It may not be connected any more.
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _run(self) -> None:
        try:
            self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._authenticate(self._connection, monotonic() + _HANDSHAKE_S)
            self._connection.settimeout(self._send_s)
            self._proven.set()
            self.on_settled()
            while True:
                frame = receive_frame(self._connection)
                self.last_seen = monotonic()
                self._inbox.put(Received(self, frame))
        except OSError:
            self._end()

    def _end(self) -> None:
        self.close()
        self.on_settled()
        if self._proven.is_set():
            self._inbox.put(Received(self, None))
        else:
            self._proven.set()  # Nobody need wait for a proof any more; sending fails on the closed socket.
