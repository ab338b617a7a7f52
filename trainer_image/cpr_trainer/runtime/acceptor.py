"""Accepts connections that have not authenticated yet, bounds them per peer, and evicts the slowest under pressure."""

from __future__ import annotations

import logging
import selectors
import socket
import threading
from collections import Counter
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, TypeVar

_LOG = logging.getLogger(__name__)

#: Connections that wait for a slot, or have sent nothing yet. Each takes a descriptor.
_WAITING = 128
#: A served connection may be evicted after this time if others wait. An honest one needs milliseconds.
_FAIR_S = 0.5
#: Pause after a failed accept: descriptors or threads are used up.
_PAUSE_S = 0.1

C = TypeVar("C")


def eviction_candidate(connections: Mapping[C, str], idle: Container[C] = ()) -> C:
    """Return the oldest connection of the peer that has the most, preferring those of that peer that are `idle`.

    connections: the addresses of all connections' peers, oldest first.
    """
    counts = Counter(connections.values())
    most = max(counts.values())
    crowd = [each for each, peer in connections.items() if counts[peer] == most]
    return next((each for each in crowd if each in idle), crowd[0])


@dataclass
class _Served:
    peer: str
    since: float
    cut_off: Callable[[], None] = field(default=lambda: None)


class Acceptor:
    """Accepts connections at `listener`, which it closes in the end, and serves up to `slots` of them at a time.

    A connection that has sent nothing takes no slot. If too many wait, one of the peer (an address) with the most of
    them is closed, preferably one that has sent nothing: a crowd evicts no connection of another peer. One peer holds
    at most half of the slots, so its connections wait for each other and those of other peers do not.

    `serve` starts a thread for a connection and returns a function that cuts it off, which may be called more than
    once. It raises ConnectionAbortedError for a caller that has gone away, another OSError if no thread can be started.
    Only `leave` frees the slot: otherwise threads that are cut off would add up. A served connection is cut off after
    `timeout_s`, and a waiting one is closed.

    One thread calls `tick` and `close`, any thread `leave` and `wake`.
    """

    def __init__(
        self,
        listener: socket.socket,
        serve: Callable[[socket.socket, Any], Callable[[], None]],
        slots: int,
        timeout_s: float,
    ) -> None:
        self._listener = listener
        self._listener.settimeout(0.0)
        self._serve = serve
        self._slots = slots
        self._timeout_s = timeout_s
        self._addresses: dict[socket.socket, tuple[Any, float]] = {}  # of waiting connections, and since when
        self._idle: dict[socket.socket, str] = {}  # peers of connections that have sent nothing, oldest first
        self._ready: dict[socket.socket, str] = {}  # peers of connections that wait for a slot
        self._served: dict[socket.socket, _Served] = {}
        self._lock = threading.Lock()
        self._wake_sender, self._wake_receiver = socket.socketpair()
        self._wake_sender.settimeout(0.0)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_receiver, selectors.EVENT_READ)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._paused_until: float | None = None  # the listener is out of the selector
        self._logged = ""

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._listener.getsockname()[1])

    def tick(self, wait_s: float) -> None:
        """Wait up to `wait_s` for connections, and serve those for which there are slots."""
        for key, _ in self._selector.select(min(wait_s, _PAUSE_S) if self._ready else wait_s):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._wake_receiver:
                self._wake_receiver.recv(4096)
            elif key.fileobj in self._idle:  # not closed by an earlier event of this very tick
                self._on_readable(key.fileobj)
        now = monotonic()
        if self._paused_until is not None and now >= self._paused_until:
            self._paused_until = None
            self._selector.register(self._listener, selectors.EVENT_READ)
        for connection, (_, since) in tuple(self._addresses.items()):
            if now - since > self._timeout_s:
                self._close_waiting(connection)
        for connection in tuple(self._ready):
            self._admit(connection, now)
        with self._lock:
            late = [served for served in self._served.values() if now - served.since > self._timeout_s]
        for served in late:
            served.cut_off()

    def leave(self, connection: socket.socket) -> None:
        """Free the slot of a connection; does nothing for one without a slot."""
        with self._lock:
            self._served.pop(connection, None)
        self.wake()

    def wake(self) -> None:
        """Have `tick` return."""
        with suppress(OSError):  # enough wake-ups are on their way, or it is closed
            self._wake_sender.send(b".")

    def close(self) -> None:
        """Close all waiting connections, and free the port."""
        for connection in tuple(self._addresses):
            self._close_waiting(connection)
        self._selector.close()
        for each in (self._listener, self._wake_sender, self._wake_receiver):
            each.close()

    def _accept(self) -> None:
        try:
            connection, address = self._listener.accept()
        except BlockingIOError:  # gone again
            return
        except OSError as error:
            self._pause(str(error))
            return
        self._logged = ""
        connection.settimeout(None)
        if len(self._addresses) >= _WAITING:
            peers = {each: peer[0] for each, (peer, _) in self._addresses.items()}
            self._close_waiting(eviction_candidate(peers, self._idle))
        self._addresses[connection] = address, monotonic()
        self._idle[connection] = address[0]
        self._selector.register(connection, selectors.EVENT_READ)

    def _on_readable(self, connection: socket.socket) -> None:
        """Let a connection that has sent something wait for a slot; close one that has ended."""
        try:
            sent = connection.recv(1, socket.MSG_PEEK)
        except OSError:
            sent = b""
        if not sent:
            self._close_waiting(connection)
            return
        self._selector.unregister(connection)
        self._ready[connection] = self._idle.pop(connection)

    def _admit(self, connection: socket.socket, now: float) -> None:
        """Serve a waiting connection if there is a slot, else cut off the oldest one that had its fair time."""
        peer = self._ready[connection]
        with self._lock:
            inside = {each: served.peer for each, served in self._served.items()}
            own = {each: other for each, other in inside.items() if other == peer}
            if len(own) >= self._slots // 2 or len(inside) >= self._slots:
                oldest = eviction_candidate(own if len(own) >= self._slots // 2 else inside)
                served = self._served[oldest]
                if now - served.since < _FAIR_S:
                    return
                # If its thread does not end meanwhile, it is the last to be cut off again.
                self._served[oldest] = self._served.pop(oldest)
                served.since = now
                cut_off = served.cut_off
            else:
                self._served[connection] = served = _Served(peer, now)
                cut_off = None
        if cut_off is not None:
            cut_off()
            return
        address, _ = self._addresses.pop(connection)
        del self._ready[connection]
        try:
            served.cut_off = self._serve(connection, address)
        except OSError as error:
            connection.close()
            with self._lock:
                self._served.pop(connection, None)
            if not isinstance(error, ConnectionAbortedError):
                self._pause(str(error))

    def _close_waiting(self, connection: socket.socket) -> None:
        del self._addresses[connection]
        if self._idle.pop(connection, None) is not None:
            self._selector.unregister(connection)
        self._ready.pop(connection, None)
        connection.close()

    def _pause(self, why: str) -> None:
        """Accept nothing for a while."""
        if why != self._logged:
            self._logged = why
            _LOG.warning("cannot accept connections at port %d now: %s", self.port, why)
        if self._paused_until is None:
            self._selector.unregister(self._listener)
        self._paused_until = monotonic() + _PAUSE_S
