"""Callers that send byte by byte are cut off at a deadline of real time."""

from __future__ import annotations

import socket
import time

import pytest
from prometheus_client import CollectorRegistry

from cpr_contract.reports import SaveRef
from cpr_trainer.exchange.handshake import Identity
from cpr_trainer.runtime import StatusServer, status_server
from cpr_trainer.trainer.allreduce import transport
from cpr_trainer.trainer.allreduce.listener import PeerListener
from cpr_trainer.trainer.allreduce.transport import Frame, Kind, header_of

HOST = "127.0.0.1"


def dribble(connection: socket.socket, words: bytes) -> None:
    for byte in words:
        connection.send(bytes([byte]))
        time.sleep(0.1)


def assert_cut_off(port: int, words: bytes) -> None:
    """Send a byte each tenth of a second until the other side hangs up."""
    with socket.create_connection((HOST, port)) as connection, pytest.raises(ConnectionError):
        dribble(connection, words)


def test_status_server_cuts_off_a_client_that_sends_byte_by_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_server, "_DEADLINE_S", 0.5)
    with StatusServer(
        HOST, 0, status=lambda: SaveRef("key", 3, 300), healthy=bool, ready=bool, registry=CollectorRegistry()
    ) as server:
        assert_cut_off(server.port, b"GET /status HTTP/1.0\r\nX: " + b"y" * 2000)


def test_listener_cuts_off_an_unauthenticated_client_that_sends_byte_by_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_HANDSHAKE_S", 0.5)
    listener = PeerListener(Identity("job", "trainer", 0, 1, 0), b"key", HOST, 0, silence_s=5)
    listener.start()
    try:
        assert_cut_off(listener.port, header_of(Frame(Kind.PROVE, 1, payload=bytes(4000))))
    finally:
        listener.close()
