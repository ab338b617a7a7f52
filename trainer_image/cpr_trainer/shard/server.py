"""The shard's sockets: one thread accepts and authenticates connections, reads frames and sends the answers.

Frames of trainers go to the service, those of other shards to the parity server.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from cpr_contract.env import ROLE_SHARD, ROLE_TRAINER
from cpr_contract.roster import Peer
from cpr_trainer.arrays import Ints
from cpr_trainer.exchange.frames import Frame, FrameError, FrameReader, FrameWriter, Header, Operation
from cpr_trainer.exchange.handshake import (
    LIMIT_BYTES,
    NONCE_BYTES,
    HandshakeError,
    Hello,
    Identity,
    Responder,
    check_certificate,
)
from cpr_trainer.parity.parity_server import ParityServer
from cpr_trainer.runtime import Certificates, Stream, TlsConnection, eviction_candidate
from cpr_trainer.shard.service import Service

_LOG = logging.getLogger(__name__)

_HANDSHAKE_TIMEOUT_S = 3.0
#: Unauthenticated connections at a time. One more evicts one of the peer with the most, preferably an idle one.
_UNAUTHENTICATED = 64
_FAIR_S = 0.5  # before a connection that has sent something is evicted
_PAUSE_S = 0.1  # between accepts while there is no slot, or no descriptor
_RETRY_S = 0.002  # while a push waits for a save to read on


class Connection:
    """An accepted connection: unauthenticated at first, then the `Client` of a trainer, or that of another shard."""

    def __init__(self, link: Stream, peer: str, responder: Responder, now: float) -> None:
        self.link = link
        self.peer = peer  # its address
        self.idle = True  # it has sent nothing yet
        self.accepted = now
        self.reader = FrameReader(LIMIT_BYTES)
        self.writer = FrameWriter()
        self.responder = responder
        self.hello: Hello | None = None
        self.backlog: deque[Frame] = deque()
        self.refused = False

    @property
    def rank(self) -> int:
        """The trainer's rank, or the index of the shard; -1 before authentication."""
        return -1 if self.hello is None else self.hello.caller.index

    @property
    def role(self) -> str:
        """The role of the caller; empty before authentication."""
        return "" if self.hello is None else self.hello.caller.role

    @property
    def has_pending(self) -> bool:
        """True if bytes are received and decrypted that the selector cannot see."""
        return isinstance(self.link, TlsConnection) and self.link.pending() > 0

    def send(self, header: Header, *payload: Any) -> None:
        """Send a frame now, or as soon as the socket takes it."""
        self.writer.add(header, *payload)
        with contextlib.suppress(OSError):  # the reading side finds the connection broken, and closes it
            self.writer.flush(self.link)

    def refuse(self, why: str) -> None:
        """Send why this connection ends; the server closes it at the next tick."""
        _LOG.warning("refused a connection of %s/%d: %s", self.role, self.rank, why)
        text = why.encode()
        self.send(Header(Operation.ERROR, payload_bytes=len(text)), text)
        self.refused = True


class Server:
    """Serves trainers that connect to `listener`, which it closes in the end. `identity` returns this shard's identity.

    There are `trainers` ranks. A frame of theirs is at most `limit_bytes` long. `newest`, int64 [MAX_TRAINERS], has the
    highest incarnation of each rank that ever joined this pod, 0 for none, and `newest_shards`, int64 [S], that of each
    other shard. They outlive the process, so the next one refuses older incarnations too. Other shards are refused
    without a `parity_server`. With `certificates` all connections are encrypted.
    """

    def __init__(  # noqa: PLR0913 -- the socket, the identity, and limits for callers
        self,
        listener: socket.socket,
        key: bytes,
        identity: Callable[[], Identity],
        service: Service,
        *,
        trainers: int,
        limit_bytes: int,
        newest: Ints,
        newest_shards: Ints,
        parity_server: ParityServer | None = None,
        certificates: Certificates | None = None,
    ) -> None:
        self._key = key
        self._certificates = certificates
        self._identity = identity
        self._service = service
        self._limit_bytes = limit_bytes
        self._parity_server = parity_server
        self._connections: dict[Connection, None] = {}  # in the order in which they were accepted
        self._unauthenticated: dict[Connection, None] = {}  # oldest first
        self._last_seen: dict[int, float] = {}  # of each rank that ever joined
        self._newest = newest[:trainers]
        self._newest_shards = newest_shards
        self._selector = selectors.DefaultSelector()
        self._listener = listener
        self._listener.settimeout(0.0)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._paused_until: float | None = None  # meanwhile the listener is out of the selector

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._listener.getsockname()[1])

    def tick(self, timeout_s: float, clock: Callable[[], float]) -> None:
        """Wait up to `timeout_s` for events of the sockets, and handle them."""
        trace = self._service.trace
        trace.lap("rest")
        pending = [connection for connection in self._connections if connection.has_pending]
        wait_s = min(timeout_s, _RETRY_S) if self._service.push_waits else timeout_s
        events = self._selector.select(0.0 if pending else wait_s)
        trace.lap("idle")
        now = clock()
        for key, mask in events:
            if key.data is None:
                self._accept(now)
            elif key.data in self._connections:  # not closed by an earlier event of this very tick
                self._serve(key.data, mask, now)
        for connection in pending:
            if connection in self._connections and not connection.refused:
                self._serve(connection, selectors.EVENT_READ, now)
        if self._paused_until is not None and now >= self._paused_until:
            self._paused_until = None
            self._selector.register(self._listener, selectors.EVENT_READ)
        self._service.retry()
        for connection in tuple(self._connections):
            if connection.refused or (connection.hello is None and now - connection.accepted > _HANDSHAKE_TIMEOUT_S):
                self._close(connection)
        self._watch()

    def _watch(self) -> None:
        """Register the events that the connections wait for."""
        for connection in self._connections:
            mask = selectors.EVENT_READ | (0 if connection.writer.idle else selectors.EVENT_WRITE)
            if self._selector.get_key(connection.link).events != mask:
                self._selector.modify(connection.link, mask, connection)

    def unresponsive(self, now: float, for_s: float) -> tuple[int, ...]:
        """Return the ranks that joined once and sent nothing for `for_s` seconds, connected or not."""
        return tuple(sorted(rank for rank, seen in self._last_seen.items() if now - seen > for_s))

    def forget_unresponsive(self, now: float, silence_s: float) -> None:
        """Forget the ranks that sent nothing for `silence_s` seconds, and close their connections."""
        forgotten = self.unresponsive(now, silence_s)
        for rank in forgotten:
            del self._last_seen[rank]
        for connection in tuple(self._joined()):
            if connection.role == ROLE_TRAINER and connection.rank in forgotten:
                self._close(connection)

    def follow(self, shards: Iterable[Peer]) -> None:
        """Refuse earlier incarnations of these shards from here on: a successor may have its rows from the parity here.

        The pod before this one had refused them. A connection of theirs stays until the successor connects.
        """
        for peer in shards:
            self._newest_shards[peer.index] = max(self._newest_shards[peer.index], peer.incarnation)

    def stop(self) -> None:
        """Close all connections and the listener: nothing more is served or acknowledged."""
        for connection in tuple(self._connections):
            self._close(connection)
        if self._listener.fileno() >= 0:
            if self._paused_until is None:
                self._selector.unregister(self._listener)
            self._paused_until = None
            self._listener.close()

    def close(self) -> None:
        """Stop, and close the selector."""
        self.stop()
        self._selector.close()

    def _joined(self) -> Iterable[Connection]:
        return (connection for connection in self._connections if connection.hello is not None)

    def _accept(self, now: float) -> None:
        if len(self._unauthenticated) >= _UNAUTHENTICATED:
            idle = {each for each in self._unauthenticated if each.idle}
            evicted = eviction_candidate({each: each.peer for each in self._unauthenticated}, idle)
            if not evicted.idle and now - evicted.accepted < _FAIR_S:
                self._pause(now)
                return
            self._close(evicted)
        try:
            link, address = self._listener.accept()
        except BlockingIOError:  # gone again
            return
        except OSError as error:
            _LOG.warning("cannot accept connections now: %s", error)
            self._pause(now)
            return
        link.settimeout(0.0)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            secured = link if self._certificates is None else self._certificates.accept(link)
        except ConnectionAbortedError:  # gone again
            return
        except OSError as error:
            link.close()
            _LOG.warning("cannot accept connections now: %s", error)
            self._pause(now)
            return
        responder = Responder(self._key, self._identity(), os.urandom(NONCE_BYTES), self._service.encoding)
        connection = Connection(secured, address[0], responder, now)
        self._connections[connection] = None
        self._unauthenticated[connection] = None
        self._selector.register(secured, selectors.EVENT_READ, connection)

    def _pause(self, now: float) -> None:
        """Accept nothing for a while."""
        self._selector.unregister(self._listener)
        self._paused_until = now + _PAUSE_S

    def _serve(self, connection: Connection, mask: int, now: float) -> None:
        try:
            if mask & selectors.EVENT_WRITE:
                connection.writer.flush(connection.link)
            if mask & selectors.EVENT_READ:
                connection.idle = False
                # One frame a tick: no trainer keeps the others waiting.
                frame = connection.reader.read(connection.link)
                self._service.trace.lap("receive")
                if frame is not None:
                    self._on_frame(connection, frame, now)
        except (FrameError, HandshakeError) as error:
            connection.refuse(str(error))
        except OSError as error:
            if isinstance(error, ssl.SSLError):
                _LOG.warning("refused a connection of %s: %s", connection.peer, error)
            self._close(connection)

    def _on_frame(self, connection: Connection, frame: Frame, now: float) -> None:
        if self._parity_server is not None and connection.role == ROLE_SHARD:
            self._parity_server.on_frame(connection, frame)
            self._service.trace.lap("parity")
            return
        if connection.hello is not None:
            self._last_seen[connection.rank] = now
            self._service.on_frame(connection, frame)
            return
        match frame.header.operation:
            case Operation.HELLO:
                text = connection.responder.challenge(bytes(frame.payload))
                connection.send(Header(Operation.CHALLENGE, payload_bytes=len(text)), text)
            case Operation.PROOF:
                self._join(connection, connection.responder.accept(bytes(frame.payload)), now)
            case _:
                raise FrameError(f"{frame.header.operation.name} before the handshake was over")

    def _join(self, connection: Connection, hello: Hello, now: float) -> None:
        caller = hello.caller
        neighbour = self._parity_server is not None and caller.role == ROLE_SHARD
        newest = self._newest_shards if neighbour else self._newest
        if not (neighbour or caller.role == ROLE_TRAINER) or not 0 <= caller.index < len(newest):
            raise HandshakeError(f"{caller.role}/{caller.index} is not a trainer of this job")
        check_certificate(connection.link, caller)
        if newest[caller.index] > caller.incarnation:
            raise HandshakeError(f"{caller.role}/{caller.index} has a newer incarnation")
        for other in tuple(self._joined()):
            if (other.role, other.rank) == (caller.role, caller.index):
                self._close(other)
        newest[caller.index] = caller.incarnation
        self._unauthenticated.pop(connection, None)
        connection.hello = hello
        if self._parity_server is not None and caller.role == ROLE_SHARD:
            connection.reader.limit_bytes = self._parity_server.limit_bytes
            connection.send(Header(Operation.WELCOME))
            return
        self._last_seen[connection.rank] = now
        connection.reader.limit_bytes = self._limit_bytes
        self._service.joined(connection)

    def _close(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        self._unauthenticated.pop(connection, None)
        self._service.left(connection)
        self._selector.unregister(connection.link)
        connection.link.close()
