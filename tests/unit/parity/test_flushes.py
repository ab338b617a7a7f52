"""Shards on threads that flush to each other over sockets, while a trainer pushes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cpr_contract.codec import from_json
from cpr_contract.spec import JobSpec
from cpr_trainer.exchange.frames import Operation
from cpr_trainer.exchange.handshake import HandshakeError, Identity
from cpr_trainer.parity.dialogue import Dialogue, NotReadyError
from cpr_trainer.parity.flush import FlushAccount
from cpr_trainer.parity.messages import Read, Rows, Stand, Standing, document_of, pack
from cpr_trainer.shard import redundancy
from support.exchanges import WAIT_S, wait_for
from support.parity_job import SHARDS, K, ParityJob, parity_of
from support.shard_job import KEY, small_job
from support.shard_thread import ShardThread


@pytest.fixture
def job() -> JobSpec:
    return replace(
        small_job(Path("unused"), shards=SHARDS, rows=(90, 37)), replay_bytes=1 << 20, parity_shards=K, silence_s=60.0
    )


@pytest.fixture
def running(job: JobSpec, monkeypatch: pytest.MonkeyPatch) -> Iterator[ParityJob]:
    monkeypatch.setattr(redundancy, "INTERVAL_S", 0.05)
    running = ParityJob(job)
    yield running
    running.close()


def test_broken_connections_lose_no_flush_and_double_none(running: ParityJob) -> None:
    for turn in range(8):
        running.push()
        running.shards[turn % SHARDS].do(running.shards[turn % SHARDS].break_connections)
    running.protect()
    running.check()


def test_what_not_all_ranks_have_pushed_is_not_told_as_protected(job: JobSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """A floor that is taken from it would ask for more than the parity has of the other rank."""
    monkeypatch.setattr(redundancy, "INTERVAL_S", 0.05)
    running = ParityJob(replace(job, trainers=2))
    try:
        running.push()
        wait_for(lambda: all(parity_of(each)._journal.protected for each in running.shards))
        wait_for(lambda: applied_in_parity(running) == {(1, 0)})
        # Trainers may still hold answers of before that flush: what a shard tells after this turn is what counts.
        for shard in running.shards:
            shard.do(lambda: None)
        assert {shard.service.protected_samples for shard in running.shards} == {0}
        assert {shard.service.protected_step for shard in running.shards} == {0}
    finally:
        running.close()


def applied_in_parity(running: ParityJob) -> set[tuple[int, ...]]:
    marks = (parity_of(each)._journal.protected for each in running.shards)
    return {from_json(FlushAccount, mark).applied for mark in marks if mark is not None}


def test_small_flushes_bring_all_rows_in_the_end(job: JobSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that a parity lacks come a few at a time, and pushes change them meanwhile."""
    monkeypatch.setattr(redundancy, "INTERVAL_S", 0.05)
    monkeypatch.setattr(redundancy, "FLUSH_BYTES", 64)
    running = ParityJob(job)
    try:
        for _ in range(3):
            running.push()
        running.replace(3)
        running.follow()
        for _ in range(20):
            running.push()
        running.protect()
        running.rest()
        running.check()
    finally:
        running.close()


def test_a_process_that_has_a_successor_is_refused(running: ParityJob) -> None:
    with running.dialogue(1, 0, incarnation=2):
        pass
    with pytest.raises(HandshakeError, match="newer incarnation of shard/0"):
        running.dialogue(1, 0)


def test_a_shard_of_another_generation_waits(running: ParityJob) -> None:
    with running.dialogue(1, 0, incarnation=2) as dialogue, pytest.raises(NotReadyError):
        dialogue.ask(*pack(Operation.STAND, 2, Stand()), Operation.STANDING)


def test_who_is_no_member_has_nothing_in_the_parity(running: ParityJob) -> None:
    with running.dialogue(0, 1, incarnation=2) as dialogue, pytest.raises(HandshakeError, match="keeps no parity for"):
        dialogue.ask(*pack(Operation.STAND, 1, Stand()), Operation.STANDING)


@pytest.mark.parametrize("asked", [Read(1, 0, 1), Read(0, 5, 2), Read(0, 0, 10_000), Read(0, -1, 2), Read(0, 0, 1, 2)])
def test_rows_that_are_not_there_are_refused(running: ParityJob, asked: Read) -> None:
    with running.dialogue(1, 0, incarnation=2) as dialogue, pytest.raises(HandshakeError, match="no "):
        dialogue.ask(*pack(Operation.READ, 1, asked), Operation.ROWS)


def test_rows_come_with_the_points_at_which_they_are(running: ParityJob) -> None:
    running.push()
    running.protect()
    with running.dialogue(1, 0, incarnation=2) as dialogue:
        stands = document_of(Standing, dialogue.ask(*pack(Operation.STAND, 1, Stand()), Operation.STANDING))
        assert stands.complete
        answer = document_of(Rows, dialogue.ask(*pack(Operation.READ, 1, Read(0, 0, 3)), Operation.ROWS))
        assert answer.known
        assert stands.point in answer.points
        asked = Read(0, 0, 3, part=0, point=stands.point)
        answer = document_of(Rows, dialogue.ask(*pack(Operation.READ, 1, asked), Operation.ROWS))
        assert not answer.known  # it is a point of another shard


def test_shards_are_refused_where_there_is_no_parity() -> None:
    shard = ShardThread(small_job(Path("unused")))
    try:
        me = Identity(shard.job.job_uid, "shard", 1, 1, 1)
        with pytest.raises(HandshakeError, match="shard/1 is no trainer"):
            Dialogue(shard.peer, KEY, me, shard.identity(), shard.service.encoding, WAIT_S)
    finally:
        shard.close()


def test_a_trainer_keeps_what_either_the_save_or_parity_lacks(running: ParityJob) -> None:
    """Parity alone lets nothing go while there is room: two shards may be lost that are in one stripe."""
    for _ in range(3):
        running.push()
    running.protect()
    assert running.exchange.forgotten() == (0,) * SHARDS
    assert running.exchange.kept() == 0.0  # and yet nothing is in danger
