"""Unavailable shards: replaced, restoring, cut off, unresponsive, of another generation, without proof of identity."""

from __future__ import annotations

import logging
import random
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from cpr_contract.roster import Peer
from cpr_contract.spec import JobSpec
from cpr_operator.cluster.local.pod_folder import PortBlocks
from cpr_trainer.embedding.unique_rows import UniqueRows
from cpr_trainer.exchange import Exchange, ShardsUnavailableError, link
from cpr_trainer.exchange.frames import Header, Operation
from support.exchanges import WAIT_S, Pair, follow, push, wait_for
from support.shard_job import HOST, KEY, trainer_roster
from support.shard_thread import ShardThread


@pytest.fixture
def unused_port() -> Iterator[int]:
    """Return a port without a listener."""
    with closing(PortBlocks(random.Random())) as ports:
        yield ports.take()


def test_all_shards_are_unavailable_before_a_roster_with_addresses(exchange: Exchange, rows: UniqueRows) -> None:
    exchange.follow(trainer_roster((Peer(0, 1, "", 0), Peer(1, 1, "", 0))))
    assert exchange.unavailable() == (0, 1)
    assert exchange.unresponsive(0.0) == ()
    with pytest.raises(ShardsUnavailableError) as caught:
        exchange.lookup(1, rows).result(WAIT_S)
    assert caught.value.shards == (0, 1)


def test_incarnation_other_than_the_rosters_is_not_used(
    serve: Callable[..., ShardThread], exchange: Exchange, pair: Pair
) -> None:
    impostor = serve(1, 2)
    impostor.peer = replace(impostor.peer, incarnation=3)
    follow(exchange, pair[0], impostor, roster=2)
    wait_for(lambda: exchange.problems() == ("expected shard/1 incarnation 3, reached shard/1 incarnation 2",))
    with pytest.raises(ShardsUnavailableError):
        exchange.wait_ready(0.5)


def test_a_shard_that_welcomes_without_a_proof_is_not_used(exchange: Exchange, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "_HANDSHAKE_TIMEOUT_S", WAIT_S)
    with socket.create_server((HOST, 0)) as impostor:
        port = impostor.getsockname()[1]
        exchange.follow(trainer_roster((Peer(0, 1, HOST, port), Peer(1, 1, "", 0))))
        connection, _ = impostor.accept()
        with connection:
            replies = Header(Operation.WELCOME, generation=1), Header(Operation.PONG, generation=1)
            connection.sendall(b"".join(header.pack() for header in replies))
            # The next connection breaks without a listener, and that clears the problem.
            wait_for(lambda: exchange.problems() == ("WELCOME before the handshake was over",))
    assert exchange.unavailable() == (0, 1)


def test_unreachable_shard_and_its_return_are_logged_once_each(
    serve: Callable[..., ShardThread],
    exchange: Exchange,
    pair: Pair,
    unused_port: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "cpr_trainer.exchange")
    exchange.follow(trainer_roster((pair[0].peer, Peer(1, 2, HOST, unused_port)), roster=2))
    wait_for(lambda: bool(caplog.records))
    with pytest.raises(ShardsUnavailableError):
        exchange.wait_ready(1.0)  # it is tried several times
    follow(exchange, pair[0], serve(1, 3), roster=3)
    exchange.wait_ready(WAIT_S)
    assert [record.getMessage() for record in caplog.records] == [
        f"no connection to shard 1 (incarnation 2) at {HOST}: Connection refused",
        "shard 1 (incarnation 3) is ready",
    ]


def test_restoring_shard_is_unavailable_until_it_serves(
    serve: Callable[..., ShardThread], exchange: Exchange, rows: UniqueRows
) -> None:
    one, two = serve(0), serve(1, ready=False)
    follow(exchange, one, two)
    wait_for(lambda: exchange.unavailable() == (1,))
    with pytest.raises(ShardsUnavailableError) as caught:
        exchange.wait_ready(0.5)
    assert caught.value.shards == (1,)
    push(exchange, rows, 1)
    two.do(two.ready)
    exchange.wait_ready(WAIT_S)
    exchange.settle(WAIT_S)
    two.do(two.service.stop)
    wait_for(lambda: exchange.unavailable() == (1,))
    with pytest.raises(ShardsUnavailableError):
        exchange.lookup(2, rows).result(WAIT_S)


def test_new_generation_drops_unacknowledged_pushes(exchange: Exchange, pair: Pair, rows: UniqueRows) -> None:
    pair[0].freeze()
    pair[1].freeze()
    push(exchange, rows, 5)
    pending = exchange.lookup(6, rows)
    follow(exchange, *pair, roster=2, generation=2)
    with pytest.raises(ShardsUnavailableError):
        pending.result(WAIT_S)
    exchange.settle(WAIT_S)
    for shard in pair:
        shard.do(lambda shard=shard: shard.ready(generation=2, applied=3))
        shard.thaw()
    exchange.wait_ready(WAIT_S)
    assert exchange.applied() == (3, 3)
    assert exchange.newest_roster_seen == 2
    push(exchange, rows, 4)
    exchange.settle(WAIT_S)
    assert exchange.applied() == (4, 4)


def test_frozen_shard_becomes_unresponsive(serve: Callable[..., ShardThread], job: JobSpec) -> None:
    shards = serve(0), serve(1)
    silence_s = 0.5
    exchange = Exchange(replace(job, silence_s=silence_s), 0, 1, KEY, 1000)
    try:
        follow(exchange, *shards)
        exchange.wait_ready(WAIT_S)
        shards[1].freeze()
        wait_for(lambda: exchange.unresponsive(silence_s) == (1,))
        wait_for(lambda: exchange.unavailable() == (1,))
        shards[1].thaw()
        wait_for(lambda: exchange.unresponsive(silence_s) == () and exchange.unavailable() == ())
    finally:
        exchange.close()


def test_address_without_a_listener_becomes_unresponsive(job: JobSpec, unused_port: int) -> None:
    silence_s = 0.3
    exchange = Exchange(replace(job, silence_s=silence_s), 0, 1, KEY, 1000)
    try:
        exchange.follow(trainer_roster((Peer(0, 1, "127.0.0.1", unused_port), Peer(1, 1, "", 0))))
        wait_for(lambda: exchange.unresponsive(silence_s) == (0,))
    finally:
        exchange.close()
