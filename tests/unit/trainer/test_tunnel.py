"""Trainers of an encrypted job join a group, sum through tunnels, and refuse strangers."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from cpr_contract.env import CONTROL_PORT
from cpr_contract.roster import Peer
from cpr_trainer.runtime import Certificates
from cpr_trainer.trainer.allreduce.carrier import carry
from cpr_trainer.trainer.allreduce.transport import Frame, Kind
from cpr_trainer.trainer.allreduce.tunnel import loopback, port_of, with_port
from cpr_trainer.trainer.control import GroupBroken
from support.certificates import STRANGERS, certificates_of, stranger, write_ca
from support.control_group import HOST, Member, roster_of
from support.wait_limit import poll_interrupts

#: An entry of Gloo: the name of the machine, and a sockaddr_in of 127.1.0.2, port 4660, in 136 bytes.
ENTRY = b"\2" + b"\0" * 7 + b"vm" + b"\x88" + b"\0" * 7 + b"\2\0\x12\x34\x7f\1\0\2" + b"\0" * 160


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    write_ca(tmp_path / "ca")
    return tmp_path / "ca"


@pytest.fixture
def member(ca: Path) -> Iterator[Callable[..., Member]]:
    made: list[Member] = []

    def make(rank: int, *other: Certificates | None) -> Member:
        (certificates,) = other or [certificates_of(ca, "job", "trainer", rank)]
        made.append(Member(rank, certificates=certificates))
        return made[-1]

    yield make
    for each in made:
        each.listener.close()


def test_three_trainers_sum_through_tunnels(member: Callable[..., Member]) -> None:
    members = [member(rank) for rank in range(3)]
    groups = [each.make_group(roster_of(members, 1)) for each in members]
    sums = [torch.full((100_000,), float(2**rank)) for rank in range(3)]
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(Member.join, members, groups))
        list(threads.map(lambda group, values: group.sum([values], poll_interrupts), groups, sums))
        assert [values.unique().tolist() for values in sums] == [[7.0]] * 3
    # Gloo listens on loopback alone.
    group = groups[0]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, members[0].listener.group_address[1]))
    del group


def test_tunnel_reaches_the_process_group_alone(member: Callable[..., Member]) -> None:
    first, second = member(0), member(1)
    with socket.create_server((loopback(0), 0)) as group, socket.create_server((loopback(0), 0)) as other:
        first.listener.group_address = group.getsockname()
        tunnel = second.listener.open_tunnel(first.peer, group.getsockname()[1])
        tunnel.sendall(b"seven")
        reached, _ = group.accept()
        with reached:
            assert reached.recv(5) == b"seven"
        refused = second.listener.open_tunnel(first.peer, other.getsockname()[1])
        assert not refused.recv_into(bytearray(1))
        for each in (tunnel, refused):
            each.close()


@pytest.mark.parametrize("kind", STRANGERS)
def test_control_port_refuses_strangers(member: Callable[..., Member], ca: Path, kind: str) -> None:
    first, other = member(0), member(1, stranger(kind, ca, "job"))
    channel = other.listener.connect_to(first.peer)
    # A caller may complete a handshake before the other side has seen its certificate.
    while channel.send(Frame(Kind.HELLO, 1)) and not channel.closed:
        poll_interrupts()
    assert channel.closed
    assert first.listener.inbox.take(0.0) is None


def test_caller_refuses_a_server_of_another_rank(member: Callable[..., Member]) -> None:
    first, second = member(0), member(1)
    with pytest.raises(OSError, match=r"Hostname mismatch"):
        second.listener.open_tunnel(Peer(2, 1, HOST, first.listener.port - CONTROL_PORT), 1)


def test_port_in_an_address_of_gloo() -> None:
    assert port_of(ENTRY) == 0x1234
    changed = with_port(ENTRY, 5)
    assert port_of(changed) == 5
    assert changed.replace(b"\2\0\0\5\x7f", b"\2\0\x12\x34\x7f") == ENTRY


@pytest.mark.parametrize("entry", [b"", ENTRY[:20], ENTRY.replace(b"\x7f\1\0\2", b"\x0a\1\0\2"), b"\xff" * 178])
def test_unknown_address_of_gloo_breaks_the_group(entry: bytes) -> None:
    with pytest.raises(GroupBroken, match="unknown form"):
        port_of(entry)


def test_tunnel_outlives_silence_and_ends_if_the_other_side_does_not_read() -> None:
    gloo, here = socket.socketpair()
    tunnel, peer = socket.socketpair()
    tunnel.settimeout(0.01)
    with gloo, peer, ThreadPoolExecutor(1) as thread:
        carried = thread.submit(carry, here, tunnel)
        for data in (b"one", b"two"):
            gloo.sendall(data)
            assert peer.recv(3) == data
            with pytest.raises(TimeoutError):
                carried.result(0.1)
        with pytest.raises(OSError, match=r"Broken pipe|reset"):
            gloo.sendall(bytes(1 << 26))
        carried.result(60)
