"""Where a trainer is reached by the others, and what it knows of them: listener, connections, heartbeats.

ControlBlock as long as the process, while groups come and go.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from time import monotonic

from cpr_contract.env import CONTROL_PORT
from cpr_contract.roster import Counters, Peer
from cpr_trainer.exchange.handshake import Identity
from cpr_trainer.runtime import Acceptor, connect, listen
from cpr_trainer.trainer.allreduce.auth import PairProofs, accept_peer, authenticate
from cpr_trainer.trainer.allreduce.frames import Frame, Kind
from cpr_trainer.trainer.allreduce.transport import Authenticate, Channel, Inbox

_LOG = logging.getLogger(__name__)

_PULSE_S = 1.0
_DIAL_S = 2.0
#: Callers that have not proved the key yet; each holds a thread and a descriptor.
_STRANGERS = 64
#: After so long a caller that has sent nothing is hung up on.
_PATIENCE_S = 5.0
_POLL_S = 0.5


class PeerListener:
    """One trainer's end of all control connections; it listens on `address`, `port`."""

    def __init__(self, me: Identity, key: bytes, address: str, port: int, silence_s: float) -> None:
        self.rank = me.index
        self.address = address
        self.inbox = Inbox()
        self._me = me
        self._key = key
        self._silence_s = silence_s
        self._open: set[Channel] = set()
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._threads = tuple(
            threading.Thread(target=target, name=name, daemon=True)
            for target, name in ((self._accept, "control-accept"), (self._pulse, "control-pulse"))
        )
        self._acceptor = Acceptor(listen(address, port), self._receive, _STRANGERS, _PATIENCE_S)
        self.port = self._acceptor.port

    def start(self) -> None:
        """Begin to listen and to send heartbeats."""
        for thread in self._threads:
            thread.start()

    def alive(self) -> bool:
        """Whether it still listens and sends heartbeats."""
        return all(thread.is_alive() for thread in self._threads)

    def close(self) -> None:
        """End everything."""
        self._ending.set()
        accepts, _ = self._threads
        if accepts.is_alive():
            self._acceptor.wake()
            accepts.join()
        self._acceptor.close()
        for channel in self._channels():
            channel.close()

    def connect_to(self, peer: Peer, inbox: Inbox | None = None) -> Channel:
        """Connect to another trainer; what it says comes into `inbox`, by default everybody's. Raises OSError."""
        if not peer.host:
            raise ConnectionRefusedError(f"trainer {peer.index} has no address yet")
        connection = connect(peer.host, peer.port_base + CONTROL_PORT, _DIAL_S)
        channel = self._open_channel(
            connection, lambda fresh, end: authenticate(fresh, end, self._key, self._me, peer), inbox
        )
        channel.start()
        return channel

    def pairs(self, counters: Counters) -> PairProofs:
        """Return what this trainer proves to the members of a dense group, and they to it."""
        return PairProofs(self._key, self._me.job_uid, counters.group, counters.generation, self.rank)

    def drop(self, channel: Channel) -> None:
        """End a connection and forget it."""
        with self._lock:
            self._open.discard(channel)
        channel.close()

    def _open_channel(
        self, connection: socket.socket, authenticate: Authenticate, inbox: Inbox | None = None
    ) -> Channel:
        channel = Channel(connection, authenticate, inbox or self.inbox, self._silence_s)
        with self._lock:
            self._open.add(channel)
        return channel

    def _channels(self) -> tuple[Channel, ...]:
        with self._lock:
            self._open = {channel for channel in self._open if not channel.closed}
            return tuple(self._open)

    def _accept(self) -> None:
        while not self._ending.is_set():
            self._acceptor.tick(_POLL_S)

    def _receive(self, connection: socket.socket, _address: object) -> Callable[[], None]:
        """Check the proof of a caller in a thread of its own. Raises OSError if there can be no more threads."""
        channel = self._open_channel(connection, lambda fresh, end: accept_peer(fresh, end, self._key, self._me))
        channel.on_settled = lambda: self._acceptor.leave(connection)
        channel.start()
        return channel.close

    def _pulse(self) -> None:
        while not self._ending.wait(_PULSE_S):
            for channel in self._channels():
                if channel.proven:
                    channel.send(Frame(Kind.PING, self.rank))


class PeerLiveness:
    """When each incarnation of a trainer was last heard, across connections."""

    def __init__(self) -> None:
        self._channels: dict[tuple[int, int], Channel] = {}

    def track(self, rank: int, incarnation: int, channel: Channel) -> None:
        """From now on, `channel` is how this incarnation is heard."""
        self._channels[rank, incarnation] = channel

    def unresponsive(self, for_s: float, members: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
        """Return the ranks of those (rank, incarnation) that were heard once, and not for the last `for_s` seconds."""
        now = monotonic()
        return tuple(
            rank
            for rank, incarnation in members
            if (channel := self._channels.get((rank, incarnation))) and now - channel.last_seen > for_s
        )
