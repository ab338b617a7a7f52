"""Where a trainer is reached by the others, and what it knows of them: listener, connections, heartbeats.

Lives as long as the process, while groups come and go.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from time import monotonic

from cpr_contract.env import CONTROL_PORT
from cpr_contract.roster import Peer
from cpr_trainer.exchange.handshake import Identity
from cpr_trainer.trainer.group.channel import Authenticate, Channel, Inbox
from cpr_trainer.trainer.group.frames import Frame, Kind
from cpr_trainer.trainer.group.proof import introduce, welcome

_PULSE_S = 1.0
_DIAL_S = 2.0


class Lobby:
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
        self._listener = socket.create_server((address, port), backlog=256)

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._listener.getsockname()[1])

    def start(self) -> None:
        """Begin to listen and to send heartbeats."""
        for target, name in ((self._accept, "control-accept"), (self._pulse, "control-pulse")):
            threading.Thread(target=target, name=name, daemon=True).start()

    def close(self) -> None:
        """End everything."""
        self._ending.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # To close it does not wake the thread that accepts.
        self._listener.close()
        for channel in self._channels():
            channel.close()

    def dial(self, peer: Peer, inbox: Inbox | None = None) -> Channel:
        """Connect to another trainer; what it says comes into `inbox`, by default everybody's. Raises OSError."""
        if not peer.host:
            raise ConnectionRefusedError(f"trainer {peer.index} has no address yet")
        connection = socket.create_connection((peer.host, peer.port_base + CONTROL_PORT), timeout=_DIAL_S)
        return self._open_channel(connection, lambda fresh: introduce(fresh, self._key, self._me, peer), inbox)

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
        channel.start()
        return channel

    def _channels(self) -> tuple[Channel, ...]:
        with self._lock:
            self._open = {channel for channel in self._open if not channel.closed}
            return tuple(self._open)

    def _accept(self) -> None:
        while not self._ending.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # Closed.
            self._open_channel(connection, lambda fresh: welcome(fresh, self._key, self._me))

    def _pulse(self) -> None:
        while not self._ending.wait(_PULSE_S):
            for channel in self._channels():
                if channel.proven:
                    channel.send(Frame(Kind.PING, self.rank))


class Hearing:
    """When each incarnation of a trainer was last heard, across connections."""

    def __init__(self, silence_s: float) -> None:
        self._silence_s = silence_s
        self._channels: dict[tuple[int, int], Channel] = {}

    def listen_to(self, rank: int, incarnation: int, channel: Channel) -> None:
        """From now on, `channel` is how this incarnation is heard."""
        self._channels[rank, incarnation] = channel

    def silent(self, members: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
        """Return the ranks of those (rank, incarnation) that were heard once, and not for the last `silence_s`."""
        now = monotonic()
        return tuple(
            rank
            for rank, incarnation in members
            if (channel := self._channels.get((rank, incarnation))) and now - channel.last_heard > self._silence_s
        )
