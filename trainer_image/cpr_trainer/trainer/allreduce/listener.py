"""A trainer's control port: accepted and outgoing connections, heartbeats, and the liveness of peers.

All of it exists until the process ends, across groups.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from time import monotonic

from cpr_contract.env import CONTROL_PORT, ROLE_TRAINER
from cpr_contract.roster import Counters, Peer
from cpr_trainer.exchange.handshake import Identity
from cpr_trainer.runtime import Acceptor, Certificates, Stream, connect, listen
from cpr_trainer.trainer.allreduce.auth import PairProofs, accept_peer, authenticate
from cpr_trainer.trainer.allreduce.carrier import carry_to
from cpr_trainer.trainer.allreduce.transport import (
    Authenticate,
    Channel,
    Frame,
    Inbox,
    Kind,
    receive_frame,
    send_frame,
)

_HEARTBEAT_S = 1.0
_CONNECT_TIMEOUT_S = 2.0
#: Limit of connections that are not authenticated yet; each takes a thread and a descriptor.
_MAX_UNAUTHENTICATED = 64
#: A caller that has sent nothing for this long is disconnected.
_IDLE_TIMEOUT_S = 5.0
_POLL_S = 0.5


class PeerListener:
    """One trainer's end of all control connections; it listens at `address` and `port`."""

    def __init__(  # noqa: PLR0913, PLR0917 -- the identity, the address, and what secures the connections
        self,
        me: Identity,
        key: bytes,
        address: str,
        port: int,
        silence_s: float,
        certificates: Certificates | None = None,
    ) -> None:
        self.rank = me.index
        self.address = address
        self.inbox = Inbox()
        self._me = me
        self._key = key
        self._certificates = certificates
        self._heartbeat_timeout_s = silence_s
        self._open: set[Channel] = set()
        #: Host and port of this trainer's process group, on loopback. Others may open tunnels to it alone.
        self.group_address = "", 0
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._threads = tuple(
            threading.Thread(target=target, name=name, daemon=True)
            for target, name in ((self._accept, "control-accept"), (self._send_heartbeats, "control-heartbeat"))
        )
        self._acceptor = Acceptor(listen(address, port), self._receive, _MAX_UNAUTHENTICATED, _IDLE_TIMEOUT_S)
        self.port = self._acceptor.port

    def start(self) -> None:
        """Begin to listen and to send heartbeats."""
        for thread in self._threads:
            thread.start()

    def alive(self) -> bool:
        """Return whether it still listens and sends heartbeats."""
        return all(thread.is_alive() for thread in self._threads)

    def close(self) -> None:
        """Stop listening, and end all connections."""
        self._ending.set()
        accepts, _ = self._threads
        if accepts.is_alive():
            self._acceptor.wake()
            accepts.join()
        self._acceptor.close()
        for channel in self._channels():
            channel.close()

    def connect_to(self, peer: Peer, inbox: Inbox | None = None) -> Channel:
        """Connect to another trainer; its frames go to `inbox`, by default that of all. Raises OSError."""
        connection = self._connect(peer)
        channel = self._open_channel(
            connection,
            lambda opened, end: authenticate(opened, end, self._key, self._me, peer),
            inbox,
        )
        channel.start()
        return channel

    @property
    def encrypted(self) -> bool:
        """True if all connections are encrypted, and those of the process group have to go through tunnels."""
        return self._certificates is not None

    def open_tunnel(self, peer: Peer, port: int) -> Stream:
        """Return a connection to this port of the peer's process group. Raises OSError."""
        deadline = monotonic() + _CONNECT_TIMEOUT_S
        tunnel = self._connect(peer)
        try:
            authenticate(tunnel, deadline, self._key, self._me, peer)
            send_frame(tunnel, Frame(Kind.TUNNEL, self.rank, port))
            while receive_frame(tunnel, limit_bytes=0, deadline=deadline).kind is not Kind.TUNNEL:
                pass  # a heartbeat
        except OSError:
            tunnel.close()
            raise
        tunnel.settimeout(self._heartbeat_timeout_s)
        return tunnel

    def pair_proofs(self, counters: Counters) -> PairProofs:
        """Return the proofs between this trainer and the members of an all-reduce group."""
        return PairProofs(self._key, self._me.job_uid, counters.group, counters.generation, self.rank)

    def drop(self, channel: Channel) -> None:
        """End a connection and forget it."""
        with self._lock:
            self._open.discard(channel)
        channel.close()

    def _connect(self, peer: Peer) -> Stream:
        if not peer.host:
            raise ConnectionRefusedError(f"trainer {peer.index} has no address yet")
        connection = connect(peer.host, peer.port_base + CONTROL_PORT, _CONNECT_TIMEOUT_S)
        if self._certificates is None:
            return connection
        return self._certificates.connect(connection, ROLE_TRAINER, peer.index)

    def _open_channel(self, connection: Stream, authenticate: Authenticate, inbox: Inbox | None = None) -> Channel:
        channel = Channel(connection, authenticate, inbox or self.inbox, self._heartbeat_timeout_s)
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
        """Authenticate a caller in a separate thread. Raises OSError if no thread can be started."""
        secured = connection if self._certificates is None else self._certificates.accept(connection)
        channel = self._open_channel(secured, lambda opened, end: accept_peer(opened, end, self._key, self._me))
        channel.on_tunnel = self._carry
        channel.on_settled = lambda: self._acceptor.leave(connection)
        channel.start()
        return channel.close

    def _carry(self, tunnel: Stream, port: int) -> None:
        """Carry a tunnel. Raises OSError for one to another port than the process group's."""
        host, group_port = self.group_address
        if port != group_port:
            raise ConnectionRefusedError(f"no process group listens on port {port}")
        carry_to(tunnel, host, port)

    def _send_heartbeats(self) -> None:
        while not self._ending.wait(_HEARTBEAT_S):
            for channel in self._channels():
                if channel.authenticated:
                    channel.send(Frame(Kind.PING, self.rank))


class PeerLiveness:
    """When each incarnation of a trainer was last seen, across connections."""

    def __init__(self) -> None:
        self._channels: dict[tuple[int, int], Channel] = {}

    def track(self, rank: int, incarnation: int, channel: Channel) -> None:
        """Judge this incarnation by `channel` from now on."""
        self._channels[rank, incarnation] = channel

    def unresponsive(self, for_s: float, members: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
        """Return the ranks of those (rank, incarnation) that were seen once, but not in the last `for_s` seconds."""
        now = monotonic()
        return tuple(
            rank
            for rank, incarnation in members
            if (channel := self._channels.get((rank, incarnation))) and now - channel.last_seen > for_s
        )
