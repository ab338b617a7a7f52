"""Clients before authentication: those that wait, are served, or are closed for others."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from cpr_trainer.runtime import Acceptor, acceptor, eviction_candidate, listen

#: Two peers, as addresses of the loopback network.
MANY, ONE = "127.0.0.2", "127.0.0.3"
NEVER_S = 3600.0


class FourSlots:
    """An acceptor with four slots in the test's thread. `served` has the clients by their port."""

    def __init__(self) -> None:
        self.served: dict[int, socket.socket] = {}
        self.cut: list[int] = []
        self.error: OSError | None = None
        self.acceptor = Acceptor(listen("127.0.0.1", 0), self._serve, slots=4, timeout_s=NEVER_S)

    def _serve(self, connection: socket.socket, address: tuple[str, int]) -> Callable[[], None]:
        if self.error is not None:
            raise self.error
        self.served[address[1]] = connection
        return lambda: self.cut.append(address[1])

    def leave(self, port: int) -> None:
        with self.served.pop(port) as connection:
            self.acceptor.leave(connection)

    def tick_until(self, found: Callable[[], bool]) -> None:
        while not found():
            self.acceptor.tick(0.01)

    def settle(self) -> None:
        """Turn until nothing more happens."""
        for _ in range(20):
            self.acceptor.tick(0.0)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FourSlots]:
    monkeypatch.setattr(acceptor, "_FAIR_S", NEVER_S)
    made = FourSlots()
    yield made
    made.acceptor.close()
    for connection in made.served.values():
        connection.close()


@pytest.fixture
def call(server: FourSlots) -> Iterator[Callable[..., socket.socket]]:
    """Connect from an address, and send some bytes."""
    with ExitStack() as calls:

        def call(host: str, data: bytes = b"") -> socket.socket:
            address = ("127.0.0.1", server.acceptor.port)
            made = calls.enter_context(socket.create_connection(address, source_address=(host, 0)))
            made.sendall(data)
            server.settle()
            return made

        yield call


def port_of(client: socket.socket) -> int:
    return int(client.getsockname()[1])


def test_oldest_connection_of_the_peer_with_the_most_is_closed_first() -> None:
    assert eviction_candidate({"a": "x", "b": "y", "c": "y", "d": "x", "e": "y"}) == "b"
    assert eviction_candidate({"a": "x", "b": "y", "c": "y"}, idle={"a", "c"}) == "c", "of that peer an idle one"
    assert eviction_candidate({"a": "x", "b": "y"}, idle={"b"}) == "b", "where all peers have as many"


def test_idle_connections_take_no_slot_and_the_peer_with_most_of_them_is_closed_first(
    server: FourSlots, call: Callable[..., socket.socket]
) -> None:
    early = call(ONE)
    idle = [call(MANY) for _ in range(600)]
    assert server.served == {}
    assert idle[0].recv(1) == b"", "the oldest of the many is closed"
    early.sendall(b"now")
    late = call(ONE, b"now")
    server.tick_until(lambda: {port_of(early), port_of(late)} <= server.served.keys())


def test_many_active_connections_of_one_peer_are_closed_before_an_idle_one_of_another(
    server: FourSlots, call: Callable[..., socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor, "_WAITING", 8)
    early = call(ONE)
    for _ in range(20):
        call(MANY, b"s")
    early.sendall(b"now")
    server.tick_until(lambda: port_of(early) in server.served)


def test_peer_with_all_its_slots_blocks_no_other_peer(server: FourSlots, call: Callable[..., socket.socket]) -> None:
    slow = [call(MANY, b"s") for _ in range(10)]
    assert list(server.served) == [port_of(client) for client in slow[:2]]
    other = call(ONE, b"now")
    server.tick_until(lambda: port_of(other) in server.served)
    server.leave(port_of(slow[0]))
    server.tick_until(lambda: port_of(slow[2]) in server.served)
    assert server.cut == []


def test_client_beyond_its_fair_time_is_cut_off_and_holds_its_slot_until_it_leaves(
    server: FourSlots, call: Callable[..., socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = call(MANY, b"s"), call(MANY, b"s")
    third = call(MANY, b"s")
    monkeypatch.setattr(acceptor, "_FAIR_S", 0.0)
    server.acceptor.tick(0.0)
    assert server.cut[0] == port_of(first)
    server.acceptor.tick(0.0)
    assert server.cut[1] == port_of(second), "a client that stays protects no other"
    assert port_of(third) not in server.served
    server.leave(port_of(second))
    server.tick_until(lambda: port_of(third) in server.served)


def test_late_active_clients_are_cut_off_and_late_idle_ones_closed(
    server: FourSlots, call: Callable[..., socket.socket]
) -> None:
    busy, idle = call(MANY, b"s"), call(ONE)
    assert server.cut == []
    server.acceptor._timeout_s = -1.0
    server.acceptor.tick(0.0)
    assert server.cut == [port_of(busy)]
    assert idle.recv(1) == b""


def test_client_that_disconnects_is_never_served(server: FourSlots, call: Callable[..., socket.socket]) -> None:
    call(ONE).close()
    other = call(ONE, b"now")
    server.tick_until(lambda: port_of(other) in server.served)
    assert len(server.served) == 1


def test_clients_without_a_thread_are_closed_and_later_ones_served(
    server: FourSlots, call: Callable[..., socket.socket], caplog: pytest.LogCaptureFixture
) -> None:
    server.error = OSError("no thread")
    with pytest.raises(ConnectionResetError):
        call(ONE, b"now").recv(1)
    assert "cannot accept connections" in caplog.text
    server.error = None
    other = call(ONE, b"now")
    server.tick_until(lambda: port_of(other) in server.served)


def test_caller_that_is_gone_delays_no_other(
    server: FourSlots, call: Callable[..., socket.socket], caplog: pytest.LogCaptureFixture
) -> None:
    server.error = ConnectionAbortedError("gone")
    with pytest.raises(ConnectionResetError):
        call(ONE, b"now").recv(1)
    server.error = None
    other = call(ONE, b"now")
    server.settle()
    assert (port_of(other) in server.served, caplog.text) == (True, "")
