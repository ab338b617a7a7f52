"""Encrypted connections, each used by two threads at a time."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from cpr_contract import env
from cpr_contract.codec import to_json
from cpr_trainer.runtime import BadSpecError, TlsConnection, certificates
from support.certificates import certificates_of, write_ca
from support.shard_job import small_job

SIZE = 5_000_000
Pair = tuple[TlsConnection, TlsConnection]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    write_ca(tmp_path / "ca")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        calling = socket.create_connection(listener.getsockname(), 60)
        accepted, _ = listener.accept()
    accepted.settimeout(60)
    trainer, shard = (certificates_of(tmp_path / "ca", "job", role, 0) for role in ("trainer", "shard"))
    both = trainer.connect(calling, "shard", 0), shard.accept(accepted)
    yield both
    for each in both:
        each.close()


def read(connection: TlsConnection, size: int) -> bytes:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = connection.recv_into(view)
        assert count
        view = view[count:]
    return bytes(data)


def hello(pair: Pair) -> None:
    """Make the handshake."""
    with ThreadPoolExecutor(1) as thread:
        received = thread.submit(read, pair[1], 5)
        pair[0].sendall(b"hello")
        assert received.result() == b"hello"


def test_both_sides_send_and_receive_at_once(pair: Pair) -> None:
    hello(pair)
    rng = np.random.default_rng(1)
    sent = [rng.bytes(SIZE) for _ in pair]
    with ThreadPoolExecutor(4) as threads:
        received = [threads.submit(read, each, SIZE) for each in pair]
        for each, data in zip(pair, sent, strict=True):
            threads.submit(each.sendall, data)
        assert [each.result() for each in received] == sent[::-1]
    assert (pair[1].peer_names, pair[0].peer_names) == ({"trainer-0.job"}, {"shard-0.job"})


def test_buffers_are_sent_in_order_whatever_is_queued_meanwhile(pair: Pair) -> None:
    """A call that could send nothing is repeated with more bytes, because frames came meanwhile."""
    hello(pair)
    rng = np.random.default_rng(2)
    sizes = (*rng.integers(1, 1000, 1000), *rng.integers(1, 200_000, 50))
    parts = [rng.bytes(int(size)) for size in sizes]
    pair[0].settimeout(0.0)
    pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)
    pair[1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
    with ThreadPoolExecutor(1) as thread:
        received: Future[bytes] | None = None
        queue: list[memoryview] = []
        todo = list(parts)
        while todo or queue:
            if todo:
                queue.append(memoryview(todo.pop(0)))
            try:
                sent = pair[0].sendmsg(queue[:64])
            except BlockingIOError:  # OpenSSL has encrypted bytes now that the socket does not take
                received = received or thread.submit(read, pair[1], sum(map(len, parts)))
                continue
            while queue and sent >= queue[0].nbytes:
                sent -= queue.pop(0).nbytes
            if sent:
                queue[0] = queue[0][sent:]
        assert received is not None
        assert received.result() == b"".join(parts)


def test_decrypted_bytes_are_pending_although_the_socket_is_not_readable(pair: Pair) -> None:
    hello(pair)
    pair[0].sendall(b"two frames")
    assert read(pair[1], 4) == b"two "
    assert (select.select([pair[1]], [], [], 0)[0], pair[1].pending()) == ([], 6)


def test_waits_end_at_the_timeout(pair: Pair) -> None:
    hello(pair)
    for timeout_s, error in ((0.0, BlockingIOError), (0.01, TimeoutError)):
        pair[1].settimeout(timeout_s)
        with pytest.raises(error):
            pair[1].recv_into(bytearray(1))


@pytest.mark.parametrize("side", [0, 1])
def test_shutdown_in_another_thread_ends_a_wait(pair: Pair, side: int) -> None:
    hello(pair)
    pair[1].settimeout(None)
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(pair[1].recv_into, bytearray(1))
        pair[side].shutdown(socket.SHUT_RDWR)
        assert not waiting.result()


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({env.ENCRYPTION: "tls"}, r"CPR_ENCRYPTION is 'tls', not one of \('None', 'TLS'\)"),
        ({env.ENCRYPTION: "TLS"}, r"the certificates in .* cannot be read: .*ca.crt"),
    ],
)
def test_bad_environment_is_named(tmp_path: Path, variables: dict[str, str], message: str) -> None:
    job = to_json(small_job(Path("unused")))
    with pytest.raises(BadSpecError, match=message):
        certificates({env.SPEC: job, env.KEY_FILE: str(tmp_path / "key"), **variables}, "shard")
