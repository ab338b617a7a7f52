"""The sockets of a shard: unknown, malformed and returning clients."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cpr_contract.env import DATA_PORT
from cpr_trainer.exchange import Exchange, ShardsUnavailableError
from cpr_trainer.exchange.frames import HEADER_BYTES, Header, Operation
from cpr_trainer.shard import server
from support.descriptors import no_descriptors_left
from support.exchanges import wait_for
from support.shard_job import HOST, KEY, small_job, trainer_roster
from support.shard_thread import ShardThread

WAIT_S = 240.0
JOB = small_job(Path("unused"), trainers=2)
Connect = Callable[[int, int], Exchange]


@pytest.fixture
def shard() -> Iterator[ShardThread]:
    shard = ShardThread(JOB)
    yield shard
    shard.close()


@pytest.fixture
def connect(shard: ShardThread) -> Iterator[Connect]:
    exchanges: list[Exchange] = []

    def start(rank: int, incarnation: int) -> Exchange:
        exchanges.append(Exchange(JOB, rank, incarnation, KEY, 1000))
        exchanges[-1].follow(trainer_roster((shard.peer,)))
        return exchanges[-1]

    yield start
    for exchange in exchanges:
        exchange.close()


def answer_to(shard: ShardThread, data: bytes) -> bytes:
    """Return all bytes that the shard sends before it disconnects."""
    with socket.create_connection((HOST, shard.peer.port_base + DATA_PORT), WAIT_S) as client:
        client.sendall(data)
        received = b""
        try:
            while piece := client.recv(4096):
                received += piece
        except ConnectionResetError:
            pass
        return received


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"GET / HTTP/1.1\r\n".ljust(HEADER_BYTES), b"not a frame"),
        (Header(Operation.PUSH, step=1).pack(), b"PUSH before the handshake"),
        (Header(Operation.HELLO, payload_bytes=1 << 40).pack(), b"over the limit"),
        (Header(Operation.HELLO, payload_bytes=2).pack() + b"{}", b"not a handshake"),
        (Header(Operation.PROOF, payload_bytes=2).pack() + b"{}", b"not a handshake"),
    ],
)
def test_unknown_client_gets_an_error_and_changes_nothing(
    shard: ShardThread, connect: Connect, data: bytes, message: bytes
) -> None:
    exchange = connect(0, 1)
    exchange.wait_ready(WAIT_S)
    received = answer_to(shard, data)
    assert Header.unpack(received[:HEADER_BYTES]).operation is Operation.ERROR
    assert message in received
    assert exchange.unavailable() == ()
    assert shard.progress.applied == (0, 0)


def test_a_newer_incarnation_of_a_trainer_takes_the_place_of_an_older(connect: Connect) -> None:
    old = connect(0, 1)
    old.wait_ready(WAIT_S)
    new = connect(0, 2)
    new.wait_ready(WAIT_S)
    wait_for(lambda: old.problems() == ("trainer/0 has a newer incarnation",))
    assert old.unavailable() == (0,)
    assert new.unavailable() == ()


@pytest.mark.parametrize("next_process", [False, True])
def test_older_incarnation_is_refused_while_the_newer_is_disconnected(
    shard: ShardThread, connect: Connect, *, next_process: bool
) -> None:
    new = connect(0, 2)
    new.wait_ready(WAIT_S)
    new.close()
    if next_process:
        shard.begin_process()
    old = connect(0, 1)
    wait_for(lambda: old.problems() == ("trainer/0 has a newer incarnation",))
    with pytest.raises(ShardsUnavailableError):
        old.wait_ready(0.5)
    connect(0, 2).wait_ready(WAIT_S)


def test_a_server_without_descriptors_waits_for_some_and_then_accepts(shard: ShardThread, connect: Connect) -> None:
    waited_s: list[float] = []

    def disturb() -> None:
        server = shard.server
        with socket.socket() as client, no_descriptors_left():
            client.connect((HOST, server.port))
            server.tick(WAIT_S, time.monotonic)
            began = time.monotonic()
            server.tick(0.05, time.monotonic)
            waited_s.append(time.monotonic() - began)

    shard.do(disturb)
    assert waited_s[0] >= 0.05, "the loop spins for a connection that it cannot accept"
    connect(0, 1).wait_ready(WAIT_S)


def test_idle_unauthenticated_connections_are_closed_for_new_ones(
    shard: ShardThread, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_FAIR_S", WAIT_S)
    monkeypatch.setattr(server, "_HANDSHAKE_TIMEOUT_S", WAIT_S)
    with ExitStack() as clients:
        for _ in range(600):
            clients.enter_context(socket.create_connection((HOST, shard.server.port)))
        connect(0, 1).wait_ready(WAIT_S)
        connect(1, 1).wait_ready(WAIT_S)


def test_many_connections_of_one_address_are_closed_before_an_idle_one_of_another(
    shard: ShardThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_FAIR_S", 0.0)
    monkeypatch.setattr(server, "_HANDSHAKE_TIMEOUT_S", WAIT_S)
    address = (HOST, shard.server.port)
    with ExitStack() as clients:
        early = clients.enter_context(socket.create_connection(address, source_address=("127.0.0.9", 0)))
        for _ in range(150):
            clients.enter_context(socket.create_connection(address)).sendall(b"s")
            shard.do(lambda: shard.server.tick(0.0, time.monotonic))
        early.sendall(b"GET / HTTP/1.1\r\n".ljust(HEADER_BYTES))
        assert b"not a frame" in early.recv(4096)


def test_a_rank_that_the_job_does_not_have_is_refused(connect: Connect) -> None:
    exchange = connect(2, 1)
    wait_for(lambda: exchange.problems() == ("trainer/2 is not a trainer of this job",))
    with pytest.raises(ShardsUnavailableError):
        exchange.wait_ready(0.5)


@pytest.mark.parametrize("broken", [False, True])
def test_unresponsive_trainer_is_reported_until_it_sends_again(
    shard: ShardThread, connect: Connect, *, broken: bool
) -> None:
    exchange = connect(1, 1)
    exchange.wait_ready(WAIT_S)
    now = time.monotonic()
    assert shard.server.unresponsive(now, WAIT_S) == ()
    if broken:
        exchange.close()
    assert shard.server.unresponsive(now + WAIT_S, WAIT_S / 2) == (1,)
    shard.do(lambda: shard.server.forget_unresponsive(now + WAIT_S, WAIT_S / 2))
    if broken:
        assert shard.server.unresponsive(now + WAIT_S, WAIT_S / 2) == ()
    else:
        assert shard.server.unresponsive(now + WAIT_S, WAIT_S * 2) == ()
        exchange.wait_ready(WAIT_S)
