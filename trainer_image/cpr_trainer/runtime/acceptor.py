"""Callers of a port that have not proved who they are: how many wait, how many are served, and which make room."""

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

#: Callers that wait for a place, or have sent nothing yet. Each takes a descriptor.
_WAITING = 128
#: After so long a served caller makes room if others wait. An honest one needs milliseconds.
_FAIR_S = 0.5
#: Nobody is accepted for so long after that failed: descriptors or threads are used up.
_REST_S = 0.1

C = TypeVar("C")


def eviction_candidate(callers: Mapping[C, str], idle: Container[C] = ()) -> C:
    """Return the oldest caller of the peer that has the most, of those that are `idle` if that peer has such.

    `callers` has the addresses of all callers' peers, oldest first.
    """
    counts = Counter(callers.values())
    most = max(counts.values())
    crowd = [caller for caller, peer in callers.items() if counts[peer] == most]
    return next((caller for caller in crowd if caller in idle), crowd[0])


@dataclass
class _Served:
    peer: str
    since: float
    cut_off: Callable[[], None] = field(default=lambda: None)


class Acceptor:
    """Accepts callers at `listener`, which it closes in the end, and has up to `places` of them served at a time.

    A caller that has sent nothing takes no place. If too many wait, one of the peer (an address) with the most of them
    is hung up on, first of those that have sent nothing: a crowd costs no caller of another peer its turn. One peer
    holds at most half of the places, so its callers wait for each other and not the callers of other peers for them.

    `serve` begins to serve a caller in a thread of its own, and returns a function that cuts the caller off, which may
    be called more than once. It raises OSError if there can be no more threads. The place is free when `leave` is
    called, not before: otherwise threads of callers that were cut off would add up. After `patience_s` a caller that
    has not left is cut off, and one that waits is hung up on.

    One thread calls `turn` and `close`, any thread `leave` and `wake`.
    """

    def __init__(
        self,
        listener: socket.socket,
        serve: Callable[[socket.socket, Any], Callable[[], None]],
        places: int,
        patience_s: float,
    ) -> None:
        self._listener = listener
        self._listener.settimeout(0.0)
        self._serve = serve
        self._places = places
        self._patience_s = patience_s
        self._addresses: dict[socket.socket, tuple[Any, float]] = {}  # of those that wait, and since when
        self._idle: dict[socket.socket, str] = {}  # peers of callers that have sent nothing, oldest first
        self._ready: dict[socket.socket, str] = {}  # peers of callers that wait for a place
        self._served: dict[socket.socket, _Served] = {}
        self._lock = threading.Lock()
        self._bell, self._ear = socket.socketpair()
        self._bell.settimeout(0.0)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._ear, selectors.EVENT_READ)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._rests_until: float | None = None  # the listener is out of the selector
        self._refused = ""

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._listener.getsockname()[1])

    def turn(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` for callers, and serve those for which there are places."""
        for key, _ in self._selector.select(min(timeout_s, _REST_S) if self._ready else timeout_s):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._ear:
                self._ear.recv(4096)
            elif key.fileobj in self._idle:  # not hung up on by an event before, in this very turn
                self._hear(key.fileobj)
        now = monotonic()
        if self._rests_until is not None and now >= self._rests_until:
            self._rests_until = None
            self._selector.register(self._listener, selectors.EVENT_READ)
        for connection, (_, since) in tuple(self._addresses.items()):
            if now - since > self._patience_s:
                self._hang_up(connection)
        for connection in tuple(self._ready):
            self._admit(connection, now)
        with self._lock:
            late = [served for served in self._served.values() if now - served.since > self._patience_s]
        for served in late:
            served.cut_off()

    def leave(self, connection: socket.socket) -> None:
        """Free the place of a caller; does nothing for one that has none."""
        with self._lock:
            self._served.pop(connection, None)
        self.wake()

    def wake(self) -> None:
        """Have `turn` return."""
        with suppress(OSError):  # enough rings are on their way, or it is closed
            self._bell.send(b".")

    def close(self) -> None:
        """Hang up on all that wait, and free the port."""
        for connection in tuple(self._addresses):
            self._hang_up(connection)
        self._selector.close()
        for each in (self._listener, self._bell, self._ear):
            each.close()

    def _accept(self) -> None:
        try:
            connection, address = self._listener.accept()
        except BlockingIOError:  # gone again
            return
        except OSError as error:
            self._rest(str(error))
            return
        self._refused = ""
        connection.settimeout(None)
        if len(self._addresses) >= _WAITING:
            peers = {each: peer[0] for each, (peer, _) in self._addresses.items()}
            self._hang_up(eviction_candidate(peers, self._idle))
        self._addresses[connection] = address, monotonic()
        self._idle[connection] = address[0]
        self._selector.register(connection, selectors.EVENT_READ)

    def _hear(self, connection: socket.socket) -> None:
        """A caller has sent something, or hung up."""
        try:
            sent = connection.recv(1, socket.MSG_PEEK)
        except OSError:
            sent = b""
        if not sent:
            self._hang_up(connection)
            return
        self._selector.unregister(connection)
        self._ready[connection] = self._idle.pop(connection)

    def _admit(self, connection: socket.socket, now: float) -> None:
        """Serve a caller that waits if there is a place, else cut off the oldest one that had its fair time."""
        peer = self._ready[connection]
        with self._lock:
            inside = {each: served.peer for each, served in self._served.items()}
            own = {each: other for each, other in inside.items() if other == peer}
            if len(own) >= self._places // 2 or len(inside) >= self._places:
                oldest = eviction_candidate(own if len(own) >= self._places // 2 else inside)
                served = self._served[oldest]
                if now - served.since < _FAIR_S:
                    return
                # It is the last to be cut off again, should its thread not end in the meantime.
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
            self._rest(str(error))

    def _hang_up(self, connection: socket.socket) -> None:
        """End a caller that waits."""
        del self._addresses[connection]
        if self._idle.pop(connection, None) is not None:
            self._selector.unregister(connection)
        self._ready.pop(connection, None)
        connection.close()

    def _rest(self, why: str) -> None:
        if why != self._refused:
            self._refused = why
            _LOG.warning("cannot accept connections at port %d now: %s", self.port, why)
        if self._rests_until is None:
            self._selector.unregister(self._listener)
        self._rests_until = monotonic() + _REST_S
