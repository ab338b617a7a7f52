"""Encrypted connections between a trainer and shards."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from cpr_contract.spec import JobSpec
from cpr_trainer.embedding.unique_rows import UniqueRows
from cpr_trainer.exchange import Exchange
from cpr_trainer.exchange.frames import Header, Operation
from cpr_trainer.exchange.handshake import HandshakeError, Identity
from cpr_trainer.parity.peer_connection import PeerConnection
from cpr_trainer.runtime import Certificates, tls
from support.certificates import STRANGERS, certificates_of, stranger, write_ca
from support.exchanges import WAIT_S, follow, push, wait_for
from support.shard_job import KEY, small_job
from support.shard_thread import ShardThread

#: A lookup of all rows needs several records of TLS.
MANY = 90
#: The reason in the shard's log.
REFUSALS = {
    "another job": "certificate verify failed",
    "another rank": "trainer/1 incarnation 1 presents the certificate of trainer-2.",
    "no certificate": "peer did not return a certificate",
    "not encrypted": "wrong version number",
}


@pytest.fixture
def job() -> JobSpec:
    return small_job(Path("unused"), shards=2, trainers=2)


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    write_ca(tmp_path / "ca")
    return tmp_path / "ca"


@pytest.fixture
def shards(job: JobSpec, serve: Callable[..., ShardThread], ca: Path) -> tuple[ShardThread, ShardThread]:
    first, second = (serve(index, certificates=certificates_of(ca, job.job_uid, "shard", index)) for index in range(2))
    return first, second


@pytest.fixture
def connect(job: JobSpec) -> Iterator[Callable[[Certificates | None], Exchange]]:
    made: list[Exchange] = []

    def make(certificates: Certificates | None) -> Exchange:
        made.append(Exchange(job, 0, 1, KEY, 1000, certificates=certificates))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_lookups_and_pushes_are_those_of_a_plain_connection(  # noqa: PLR0913, PLR0917 -- fixtures
    job: JobSpec,
    ca: Path,
    shards: tuple[ShardThread, ShardThread],
    serve: Callable[..., ShardThread],
    connect: Callable[[Certificates | None], Exchange],
    rows: UniqueRows,
) -> None:
    seen = []
    for certificates, pair in ((certificates_of(ca, job.job_uid, "trainer", 0), shards), (None, (serve(0), serve(1)))):
        exchange = connect(certificates)
        follow(exchange, *pair)
        exchange.wait_ready(WAIT_S)
        for step in range(1, MANY):
            exchange.lookup(step, rows).result(WAIT_S)
            push(exchange, rows, step)
        exchange.settle(WAIT_S)
        seen.append(exchange.lookup(MANY, rows).result(WAIT_S).copy())
    encrypted, plain = seen
    np.testing.assert_array_equal(encrypted, plain)


def test_frames_of_one_record_are_all_answered(job: JobSpec, ca: Path, shards: tuple[ShardThread, ShardThread]) -> None:
    """A shard reads a frame at a time, and the socket is not readable for those that are decrypted already."""
    shard, certificates = shards[0], certificates_of(ca, job.job_uid, "trainer", 0)
    me, identity, encoding = Identity(job.job_uid, "trainer", 0, 1, 1), shard.identity(), shard.service.encoding
    ping = Header(Operation.PING, roster=1, group=1, generation=1, total_samples=job.data.samples or 0, step=-1)
    with closing(PeerConnection(shard.peer, KEY, me, identity, encoding, WAIT_S, certificates)) as connection:
        for _ in range(3):
            connection._writer.add(ping)
        connection._writer.flush(connection._connection)
        for _ in range(3):
            connection.receive(Operation.PONG)


@pytest.mark.parametrize("kind", STRANGERS)
def test_shard_refuses_strangers(
    job: JobSpec, ca: Path, shards: tuple[ShardThread, ShardThread], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    me, shard = Identity(job.job_uid, "trainer", 1, 1, 1), shards[0]
    identity, encoding, certificates = shard.identity(), shard.service.encoding, stranger(kind, ca, job.job_uid)
    with pytest.raises((OSError, HandshakeError)):
        PeerConnection(shard.peer, KEY, me, identity, encoding, WAIT_S, certificates)
    wait_for(lambda: REFUSALS[kind] in caplog.text)
    assert not list(shard.server._joined())


def test_trainer_refuses_the_server_of_another_shard(
    job: JobSpec,
    ca: Path,
    serve: Callable[..., ShardThread],
    connect: Callable[..., Exchange],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    swapped = [serve(index, certificates=certificates_of(ca, job.job_uid, "shard", 1 - index)) for index in range(2)]
    exchange = connect(certificates_of(ca, job.job_uid, "trainer", 0))
    follow(exchange, *swapped)
    wait_for(lambda: caplog.text.count("Hostname mismatch") >= 2)
    assert exchange.unavailable() == (0, 1)


def test_next_connection_has_a_new_certificate(
    job: JobSpec, ca: Path, shards: tuple[ShardThread, ShardThread], caplog: pytest.LogCaptureFixture
) -> None:
    now = time.time() - tls.LIFETIME_S - 1
    certificates = Certificates(ca, job.job_uid, "trainer", lambda: now)
    me, shard = Identity(job.job_uid, "trainer", 0, 1, 1), shards[0]

    def connect() -> PeerConnection:
        return PeerConnection(shard.peer, KEY, me, shard.identity(), shard.service.encoding, WAIT_S, certificates)

    with pytest.raises(OSError, match=r"EOF|alert|reset|closed"):
        connect()
    wait_for(lambda: "certificate has expired" in caplog.text)
    now += tls.LIFETIME_S / 2 + 1  # half of it is not enough: a certificate's end is rounded
    with closing(connect()):
        assert len(list(shard.server._joined())) == 1


def test_clock_that_is_set_back_makes_a_new_certificate(
    job: JobSpec, ca: Path, shards: tuple[ShardThread, ShardThread]
) -> None:
    now = time.time() + 3 * 3600
    certificates = Certificates(ca, job.job_uid, "trainer", lambda: now)
    me, shard = Identity(job.job_uid, "trainer", 0, 1, 1), shards[0]
    identity, encoding = shard.identity(), shard.service.encoding
    with pytest.raises(OSError, match=r"EOF|alert|reset|closed"):
        PeerConnection(shard.peer, KEY, me, identity, encoding, WAIT_S, certificates)
    now = time.time()
    PeerConnection(shard.peer, KEY, me, identity, encoding, WAIT_S, certificates).close()
