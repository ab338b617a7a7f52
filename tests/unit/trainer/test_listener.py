"""A trainer's control port among strangers, and where the process lacks descriptors or threads."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from cpr_contract.env import CONTROL_PORT
from cpr_contract.roster import Peer
from cpr_trainer.exchange.handshake import Identity
from cpr_trainer.trainer.allreduce import transport
from cpr_trainer.trainer.allreduce.listener import PeerListener
from cpr_trainer.trainer.allreduce.transport import Channel, Frame, Kind
from support.descriptors import no_descriptors_left

HOST = "127.0.0.1"
KEY = b"key"
READER = "control-reader"


def listener_of(rank: int) -> PeerListener:
    listener = PeerListener(Identity("job", "trainer", rank, 1, 0), KEY, HOST, 0, silence_s=5)
    listener.start()
    return listener


@pytest.fixture
def listener() -> Iterator[PeerListener]:
    listener = listener_of(0)
    yield listener
    listener.close()


@pytest.fixture
def connect_to(listener: PeerListener) -> Iterator[Callable[[], Channel]]:
    """Another trainer's connection to the listener."""
    other = listener_of(1)
    yield lambda: other.connect_to(Peer(0, 1, HOST, listener.port - CONTROL_PORT))
    other.close()


def is_admitted(caller: Channel) -> bool:
    return caller.send(Frame(Kind.HELLO, 1, payload=b"here I am"))


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a proof may come late."""
    monkeypatch.setattr(transport, "_HANDSHAKE_S", 60.0)


@pytest.mark.usefixtures("patient")
def test_listener_without_descriptors_accepts_callers_later(
    listener: PeerListener, connect_to: Callable[[], Channel], caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as stranger:
        with no_descriptors_left():
            stranger.connect((HOST, listener.port))
            while "cannot accept" not in caplog.text and listener.alive():
                time.sleep(0.01)
        assert listener.alive()
        assert is_admitted(connect_to())


@pytest.mark.usefixtures("patient")
def test_listener_without_threads_accepts_callers_later(
    listener: PeerListener,
    connect_to: Callable[[], Channel],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == READER:
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch, socket.socket() as stranger:
        patch.setattr(threading.Thread, "start", refuse)
        stranger.connect((HOST, listener.port))
        stranger.sendall(b"?")
        while "cannot accept" not in caplog.text and listener.alive():
            time.sleep(0.01)
    assert listener.alive()
    assert is_admitted(connect_to())


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("data", [b"", b"?"], ids=["idle", "slow"])
def test_unauthenticated_callers_take_a_bounded_number_of_threads_and_block_no_peer(
    listener: PeerListener, connect_to: Callable[[], Channel], data: bytes
) -> None:
    before = {*threading.enumerate()}  # readers of the last test's connections may not have ended yet
    with ExitStack() as strangers:
        for _ in range(100):
            strangers.enter_context(socket.create_connection((HOST, listener.port))).sendall(data)
        assert is_admitted(connect_to())
        # Both ends of the honest connection are read here, too.
        threads = sum(thread.name == READER for thread in {*threading.enumerate()} - before)
        assert threads <= (32 if data else 0) + 2


def test_closed_listener_is_not_alive(listener: PeerListener) -> None:
    listener.close()
    while listener.alive():
        time.sleep(0.01)
