"""The shard's sockets: one thread accepts, checks proofs, reads frames and sends the answers.

Frames of trainers are for the service, those of other shards for the desk.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any

from cpr_contract.env import ROLE_SHARD, ROLE_TRAINER
from cpr_trainer.arrays import Ints
from cpr_trainer.exchange.frames import Frame, FrameError, FrameReader, FrameWriter, Header, Operation
from cpr_trainer.exchange.handshake import LIMIT_BYTES, NONCE_BYTES, HandshakeError, Hello, Identity, Responder
from cpr_trainer.parity.desk import Desk
from cpr_trainer.runtime import eviction_candidate
from cpr_trainer.shard.service import Service

_LOG = logging.getLogger(__name__)

_PATIENCE_S = 3.0  # for a stranger to prove the key
_STRANGERS = 64  # so many at the same time; for one more one of the peer with the most goes, first a silent one
_FAIR_S = 0.5  # for one that has sent something
_REST_S = 0.1  # nobody is accepted for so long where there is no room, or no descriptor left
_RETRY_S = 0.002  # while a push waits for a save to read on


class Connection:
    """One accepted connection: a stranger until its proof holds, then the `Client` of a trainer, or another shard's."""

    def __init__(self, link: socket.socket, peer: str, responder: Responder, now: float) -> None:
        self.link = link
        self.peer = peer  # its address
        self.silent = True  # whether it has sent nothing yet
        self.accepted = now
        self.reader = FrameReader(LIMIT_BYTES)
        self.writer = FrameWriter()
        self.responder = responder
        self.hello: Hello | None = None
        self.backlog: deque[Frame] = deque()
        self.refused = False

    @property
    def rank(self) -> int:
        """The trainer's rank, or the index of the shard; -1 for a stranger."""
        return -1 if self.hello is None else self.hello.caller.index

    @property
    def role(self) -> str:
        """What calls; empty for a stranger."""
        return "" if self.hello is None else self.hello.caller.role

    def send(self, header: Header, *payload: Any) -> None:
        """Send a frame now, or as soon as the socket takes it."""
        self.writer.add(header, *payload)
        with contextlib.suppress(OSError):  # the reading side finds it broken, and clears up
            self.writer.flush(self.link)

    def refuse(self, why: str) -> None:
        """Say why this connection ends; the server closes it soon."""
        _LOG.warning("refused a connection of %s/%d: %s", self.role, self.rank, why)
        text = why.encode()
        self.send(Header(Operation.ERROR, payload_bytes=len(text)), text)
        self.refused = True


class Server:
    """Serves trainers that connect to `listener`, which it closes in the end. `identity` tells who this shard is now.

    `trainers` is how many ranks there are; a frame of theirs may be `limit_bytes` long. `newest`, int64 [MAX_TRAINERS],
    has the highest incarnation of each rank that ever joined this pod, 0 for none. It outlives the server, so that an
    older incarnation is refused in the next life, too. Other shards are refused where there is no `desk` for them.
    """

    def __init__(  # noqa: PLR0913 -- where, who, and for whom
        self,
        listener: socket.socket,
        key: bytes,
        identity: Callable[[], Identity],
        service: Service,
        *,
        trainers: int,
        limit_bytes: int,
        newest: Ints,
        desk: Desk | None = None,
    ) -> None:
        self._key = key
        self._identity = identity
        self._service = service
        self._trainers = trainers
        self._limit_bytes = limit_bytes
        self._desk = desk
        self._connections: dict[Connection, None] = {}  # in the order in which they were accepted
        self._strangers: dict[Connection, None] = {}  # oldest first
        self._heard: dict[int, float] = {}  # when each rank that ever joined was last heard
        self._newest = newest
        self._newest_shards = defaultdict[int, int](int)  # of other shards, whose parity is built anew in each life
        self._selector = selectors.DefaultSelector()
        self._listener = listener
        self._listener.settimeout(0.0)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._rests_until: float | None = None  # the listener is out of the selector, else it would never sleep

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._listener.getsockname()[1])

    def turn(self, timeout_s: float, clock: Callable[[], float]) -> None:
        """Wait up to `timeout_s` for the sockets, and handle what they have."""
        trace = self._service.trace
        trace.lap("rest")
        events = self._selector.select(min(timeout_s, _RETRY_S) if self._service.waits else timeout_s)
        trace.lap("idle")
        now = clock()
        for key, mask in events:
            if key.data is None:
                self._accept(now)
            elif key.data in self._connections:  # not closed by an event before, in this very turn
                self._serve(key.data, mask, now)
        if self._rests_until is not None and now >= self._rests_until:
            self._rests_until = None
            self._selector.register(self._listener, selectors.EVENT_READ)
        self._service.retry()
        for connection in tuple(self._connections):
            if connection.refused or (connection.hello is None and now - connection.accepted > _PATIENCE_S):
                self._close(connection)
        for connection in self._connections:
            self._watch(connection)

    def silent(self, now: float, for_s: float) -> tuple[int, ...]:
        """Return the ranks that joined once and were not heard for `for_s` seconds, connected or not."""
        return tuple(sorted(rank for rank, heard in self._heard.items() if now - heard > for_s))

    def forget_silent(self, now: float, silence_s: float) -> None:
        """Wait for silent ranks no longer, and close their connections: their successors will join anew."""
        gone = self.silent(now, silence_s)
        for rank in gone:
            del self._heard[rank]
        for connection in tuple(self._joined()):
            if connection.role == ROLE_TRAINER and connection.rank in gone:
                self._close(connection)

    def stop(self) -> None:
        """Close everything: nobody is served or acknowledged any more."""
        for connection in tuple(self._connections):
            self._close(connection)
        if self._listener.fileno() >= 0:
            if self._rests_until is None:
                self._selector.unregister(self._listener)
            self._rests_until = None
            self._listener.close()

    def close(self) -> None:
        """Stop, and give back what the selector holds."""
        self.stop()
        self._selector.close()

    def _joined(self) -> Iterable[Connection]:
        return (connection for connection in self._connections if connection.hello is not None)

    def _accept(self, now: float) -> None:
        if len(self._strangers) >= _STRANGERS:
            silent = {each for each in self._strangers if each.silent}
            going = eviction_candidate({each: each.peer for each in self._strangers}, silent)
            if not going.silent and now - going.accepted < _FAIR_S:
                self._rest(now)
                return
            self._close(going)
        try:
            link, address = self._listener.accept()
        except BlockingIOError:  # gone again
            return
        except OSError as error:
            _LOG.warning("cannot accept connections now: %s", error)
            self._rest(now)
            return
        link.settimeout(0.0)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        responder = Responder(self._key, self._identity(), os.urandom(NONCE_BYTES), self._service.encoding)
        connection = Connection(link, address[0], responder, now)
        self._connections[connection] = None
        self._strangers[connection] = None
        self._selector.register(link, selectors.EVENT_READ, connection)

    def _rest(self, now: float) -> None:
        self._selector.unregister(self._listener)
        self._rests_until = now + _REST_S

    def _serve(self, connection: Connection, mask: int, now: float) -> None:
        try:
            if mask & selectors.EVENT_WRITE:
                connection.writer.flush(connection.link)
            if mask & selectors.EVENT_READ:
                connection.silent = False
                # One frame a turn: no trainer keeps the others waiting.
                frame = connection.reader.read(connection.link)
                self._service.trace.lap("receive")
                if frame is not None:
                    self._on_frame(connection, frame, now)
        except (FrameError, HandshakeError) as error:
            connection.refuse(str(error))
        except OSError:
            self._close(connection)

    def _on_frame(self, connection: Connection, frame: Frame, now: float) -> None:
        if self._desk is not None and connection.role == ROLE_SHARD:
            self._desk.on_frame(connection, frame)
            self._service.trace.lap("parity")
            return
        if connection.hello is not None:
            self._heard[connection.rank] = now
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
        self._check(caller)
        for other in tuple(self._joined()):
            if (other.role, other.rank) == (caller.role, caller.index):
                self._close(other)
        self._newest_of(caller)[caller.index] = caller.incarnation
        self._strangers.pop(connection, None)
        connection.hello = hello
        if self._desk is not None and caller.role == ROLE_SHARD:
            connection.reader.limit_bytes = self._desk.limit_bytes
            connection.send(Header(Operation.WELCOME))
            return
        self._heard[connection.rank] = now
        connection.reader.limit_bytes = self._limit_bytes
        self._service.joined(connection)

    def _check(self, caller: Identity) -> None:
        """Raise HandshakeError unless this is a member whom somebody here serves, and the newest one of its name."""
        neighbour = self._desk is not None and caller.role == ROLE_SHARD
        if not neighbour and (caller.role != ROLE_TRAINER or not 0 <= caller.index < self._trainers):
            raise HandshakeError(f"{caller.role}/{caller.index} is no trainer of this job")
        if self._newest_of(caller)[caller.index] > caller.incarnation:
            raise HandshakeError(f"a newer incarnation of {caller.role}/{caller.index} has joined")

    def _newest_of(self, caller: Identity) -> Ints | defaultdict[int, int]:
        return self._newest if caller.role == ROLE_TRAINER else self._newest_shards

    def _close(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        self._strangers.pop(connection, None)
        self._service.left(connection)
        self._selector.unregister(connection.link)
        connection.link.close()

    def _watch(self, connection: Connection) -> None:
        mask = selectors.EVENT_READ | (0 if connection.writer.idle else selectors.EVENT_WRITE)
        if self._selector.get_key(connection.link).events != mask:
            self._selector.modify(connection.link, mask, connection)
