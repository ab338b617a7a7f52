"""Encrypted connections for the process group: published builds of Gloo have no TLS.

Gloo listens on loopback and connects to loopback. In the address store a tunnel puts its own port into the entry of
each other trainer. Connections to that port go over an encrypted control connection to the other trainer. The tunnel
there connects to its own Gloo:

    Gloo -> loopback -> tunnel -> TLS, the other trainer's control port -> its tunnel -> loopback -> Gloo
"""

from __future__ import annotations

import logging
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address

from cpr_contract.roster import Peer
from cpr_trainer.runtime import listen
from cpr_trainer.runtime.sockets import family_of
from cpr_trainer.trainer.allreduce.carrier import carry
from cpr_trainer.trainer.allreduce.listener import PeerListener
from cpr_trainer.trainer.control import GroupBroken

_LOG = logging.getLogger(__name__)

#: The time for Gloo to connect, at least the time-out of the process group.
_ENTRANCE_S = 10.0
#: An entry of Gloo begins with the machine's name and the size of the address, which is a sockaddr_storage.
_LENGTH, _FAMILY, _PORT = struct.Struct("=Q"), struct.Struct("=H"), struct.Struct("!H")


@dataclass(frozen=True, slots=True)
class Entry:
    """The entry that one trainer puts into the address store; `value` is hex."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries of all trainers."""

    entries: tuple[Entry, ...]


#: Sends this trainer's entry and returns those of all. Raises GroupBroken, and what ends a wait.
ExchangeAddresses = Callable[[Entry], Entries]


def through_tunnels(
    listener: PeerListener, peers: Sequence[Peer], exchange_addresses: ExchangeAddresses
) -> ExchangeAddresses:
    """Return an exchange after which Gloo connects to the other trainers through tunnels. `peers` are all trainers."""
    lower = {peer.index: peer for peer in peers if peer.index < listener.rank}  # see `loopback`

    def enter(entry: Entry) -> Entry:
        rank, value = int(entry.key.rpartition("/")[2]), bytes.fromhex(entry.value)
        if rank not in lower:
            return entry
        entrance = listen(loopback(rank), 0)
        arguments = (listener, entrance, lower[rank], port_of(value))
        threading.Thread(target=_carry_first, args=arguments, name=f"tunnel {rank}", daemon=True).start()
        return Entry(entry.key, with_port(value, entrance.getsockname()[1]).hex())

    def exchange(own: Entry) -> Entries:
        listener.group_address = loopback(listener.rank), port_of(bytes.fromhex(own.value))
        return Entries(tuple(map(enter, exchange_addresses(own).entries)))

    return exchange


def _carry_first(listener: PeerListener, entrance: socket.socket, peer: Peer, port: int) -> None:
    """Carry the one connection of Gloo to a port of this peer. Gloo may count it as connected before it is accepted."""
    entrance.settimeout(_ENTRANCE_S)
    try:
        with entrance:
            connection, _ = entrance.accept()
    except OSError as error:
        _LOG.info("the process group did not connect to trainer %d: %s", peer.index, error)
        return
    with connection:
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            tunnel = listener.open_tunnel(peer, port)
        except OSError as error:
            _LOG.info("no tunnel to trainer %d (incarnation %d): %s", peer.index, peer.incarnation, error)
            return
        carry(connection, tunnel)


def loopback(rank: int) -> str:
    """Return the loopback address of a trainer's process group.

    Gloo compares both addresses of a pair, and the side with the higher one connects. It has to find the same order on
    both sides, where the ports of tunnels differ. All of 127.0.0.0/8 is loopback.
    """
    return str(IPv4Address("127.1.0.1") + rank)


def port_of(entry: bytes) -> int:
    """Return the port in Gloo's entry of the address store. Raises GroupBroken for an entry of another form."""
    (port,) = _PORT.unpack_from(entry, _port_offset(entry))
    return int(port)


def with_port(entry: bytes, port: int) -> bytes:
    """Return the entry with another port. Raises GroupBroken for an entry of another form."""
    offset = _port_offset(entry)
    return entry[:offset] + _PORT.pack(port) + entry[offset + _PORT.size :]


def _port_offset(entry: bytes) -> int:
    try:
        (name_bytes,) = _LENGTH.unpack_from(entry)
        start = 2 * _LENGTH.size + name_bytes
        (family,) = _FAMILY.unpack_from(entry, start)
        address = IPv4Address(entry[start + 4 : start + 8])
    except (struct.error, ValueError, OverflowError) as error:
        raise GroupBroken(f"an address of Gloo has an unknown form: {error}") from error
    if family != family_of(str(address)) or not address.is_loopback:
        raise GroupBroken(f"an address of Gloo has an unknown form: family {family}, {address}")
    return int(start) + _FAMILY.size
