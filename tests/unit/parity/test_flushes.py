"""Shards on threads that flush to each other over sockets, while a trainer pushes."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from cpr_contract.codec import from_json
from cpr_contract.roster import Peer
from cpr_trainer.exchange.frames import Operation
from cpr_trainer.exchange.handshake import HandshakeError, Identity
from cpr_trainer.parity.flush import FlushAccount
from cpr_trainer.parity.messages import PositionQuery, PositionReply, Read, Rows, document_of, pack
from cpr_trainer.parity.peer_connection import NotReadyError, PeerConnection
from support.exchanges import WAIT_S, wait_for
from support.parity_job import SHARDS, ParityJob, parity_of
from support.shard_job import KEY, small_job
from support.shard_thread import ShardThread


@pytest.mark.parametrize("trainers", [2])
def test_protection_excludes_steps_that_not_all_ranks_have_pushed(running: ParityJob) -> None:
    """Otherwise a floor could require more samples than the parity has of the other rank."""
    running.push()
    wait_for(lambda: all(parity_of(each)._journal.protected for each in running.shards))
    wait_for(lambda: applied_in_parity(running) == {(1, 0)})
    # A later tick publishes the protection of that flush.
    for shard in running.shards:
        shard.do(lambda: None)
    assert {shard.service.protected_samples for shard in running.shards} == {0}
    assert {shard.service.protected_step for shard in running.shards} == {0}


def applied_in_parity(running: ParityJob) -> set[tuple[int, ...]]:
    marks = (parity_of(each)._journal.protected for each in running.shards)
    return {from_json(FlushAccount, mark).applied for mark in marks if mark is not None}


@pytest.mark.parametrize("seen", ["connected", "connected to the last process", "in the roster"])
def test_process_with_a_successor_is_refused(running: ParityJob, seen: str) -> None:
    """Otherwise it reports pushes as protected that its successor's rows lack."""
    if seen == "in the roster":
        running.shards[1].do(lambda: running.shards[1].server.follow([Peer(0, 2, "", 0)]))
    else:
        with closing(running.connection(1, 0, incarnation=2)):
            pass
    if seen == "connected to the last process":
        running.shards[1].begin_process()
    with pytest.raises(HandshakeError, match="shard/0 has a newer incarnation"):
        running.connection(1, 0)


NO_ROWS = [Read(1, 0, 1), Read(0, 5, 2), Read(0, 0, 10_000), Read(0, -1, 2), Read(0, 0, 1, 2)]


@pytest.mark.parametrize(
    ("shards", "generation", "query", "error_text"),
    [
        ((1, 0), 2, PositionQuery(), None),  # of another generation
        ((0, 1), 1, PositionQuery(), "keeps no parity for"),
        *(((1, 0), 1, read, "no ") for read in NO_ROWS),
    ],
)
def test_request_that_a_holder_cannot_answer_is_refused(
    running: ParityJob, shards: tuple[int, int], generation: int, query: Read | PositionQuery, error_text: str | None
) -> None:
    error = NotReadyError if error_text is None else HandshakeError
    operations = (
        (Operation.READ, Operation.ROWS) if isinstance(query, Read) else (Operation.QUERY_POSITION, Operation.POSITION)
    )
    with closing(running.connection(*shards, incarnation=2)) as connection, pytest.raises(error, match=error_text):
        connection.request(*pack(operations[0], generation, query), operations[1])


def test_shards_are_refused_without_parity() -> None:
    shard = ShardThread(small_job(Path("unused")))
    try:
        me = Identity(shard.job.job_uid, "shard", 1, 1, 1)
        with pytest.raises(HandshakeError, match="shard/1 is not a trainer"):
            PeerConnection(shard.peer, KEY, me, shard.identity(), shard.service.encoding, WAIT_S)
    finally:
        shard.close()


def test_rows_are_returned_with_their_points(running: ParityJob) -> None:
    running.push()
    running.protect()
    with closing(running.connection(1, 0, incarnation=2)) as connection:
        position = document_of(
            PositionReply, connection.request(*pack(Operation.QUERY_POSITION, 1, PositionQuery()), Operation.POSITION)
        )
        assert position.complete
        answer = document_of(Rows, connection.request(*pack(Operation.READ, 1, Read(0, 0, 3)), Operation.ROWS))
        assert answer.known
        assert position.point in answer.points
        read = Read(0, 0, 3, part=0, point=position.point)
        answer = document_of(Rows, connection.request(*pack(Operation.READ, 1, read), Operation.ROWS))
        assert not answer.known  # it is a point of another shard


def test_broken_connections_lose_and_repeat_no_flush(running: ParityJob) -> None:
    for round_ in range(8):
        running.push()
        running.shards[round_ % SHARDS].do(running.shards[round_ % SHARDS].break_connections)
    running.protect()
    running.check()
