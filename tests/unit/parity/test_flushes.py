"""Shards on threads that flush to each other over sockets, while a trainer pushes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cpr_contract.spec import JobSpec
from cpr_trainer.access import find_access
from cpr_trainer.exchange import Exchange, ShardsAwayError
from cpr_trainer.exchange.handshake import HandshakeError, Identity
from cpr_trainer.parity.dialogue import Dialogue, NotReadyError
from cpr_trainer.parity.images import Image, View
from cpr_trainer.parity.messages import Operation, Read, Rows, Stand, Standing, document_of, pack
from cpr_trainer.parity.ring import Parts, Ring
from cpr_trainer.placement import Placement
from cpr_trainer.shard import redundancy
from support.exchanges import WAIT_S, follow, wait_for
from support.parity_ring import same
from support.shard_job import KEY, shard_roster, small_job
from support.shard_thread import ShardThread

SHARDS, K = 4, 2


@pytest.fixture
def job() -> JobSpec:
    return replace(
        small_job(Path("unused"), shards=SHARDS, rows=(90, 37)), replay_bytes=1 << 20, parity_shards=K, silence_s=2.0
    )


class Job:
    """All shards of a job, and its trainer."""

    def __init__(self, job: JobSpec) -> None:
        self.spec = job
        self.placement = Placement.of(job.model, job.shards)
        self.ring, self.parts = Ring(SHARDS, K), Parts.of(self.placement, K)
        self.shards = [ShardThread(job, index) for index in range(SHARDS)]
        self.exchange = Exchange(job, 0, 1, KEY, 1000)
        self.step = 0
        self.follow()

    def follow(self) -> None:
        peers = tuple(shard.peer for shard in self.shards)
        self.step_roster = self.step + 2
        for shard in self.shards:
            roster = shard_roster(index=shard.index, incarnation=shard.incarnation, shards=peers)
            shard.do(lambda shard=shard, roster=roster: parity_of(shard).follow(roster))
        follow(self.exchange, *self.shards, roster=self.step_roster)
        self.exchange.wait_ready(WAIT_S)

    def push(self) -> None:
        self.step += 1
        rng = np.random.default_rng(self.step)
        ids = np.stack([rng.integers(0, 90, 30), rng.integers(0, 37, 30)], axis=1)
        rows = find_access(self.placement, ids).unique
        values = np.full((len(rows), 4), self.step, np.float32)
        self.patiently(lambda: self.exchange.push(self.step, rows, values, 0, WAIT_S))
        self.patiently(lambda: self.exchange.settle(WAIT_S))

    def patiently(self, action: Callable[[], None]) -> None:
        while True:
            try:
                action()
            except ShardsAwayError:
                self.exchange.wait_ready(WAIT_S)
            else:
                return

    def protect(self) -> None:
        """Wait until parity holds all that was pushed."""
        samples = self.step * self.spec.data.batch_size
        wait_for(lambda: (self.exchange.heartbeat(0), self.exchange.protected() == (samples,) * SHARDS)[1])

    def check(self) -> None:
        """Parity is the XOR of the rows as they are: nothing is pushed now."""
        for holder in range(SHARDS):
            for segment in range(len(self.shards[0].arena.segments)):
                expected = Image.zeros(self.parts.sizes[segment], 4, 1)
                for part, member in enumerate(self.ring.members(holder)):
                    view = View.of_part(self.shards[member].arena, self.parts, part, segment)
                    image = Image.zeros(len(view), 4, 1)
                    view.read(np.arange(len(view)), image)
                    expected[: len(view)].add(image)
                store = parity_of(self.shards[holder])._store
                assert same(store.read(segment, 0, self.parts.sizes[segment]), expected)

    def replace(self, index: int) -> None:
        """Another process, with the rows that the last one had."""
        old = self.shards[index]
        old.close()
        new = ShardThread(self.spec, index, old.incarnation + 1, ready=False)

        def serve() -> None:
            for mine, theirs in zip(new.arena.segments, old.arena.segments, strict=True):
                mine.rows[...], mine.state[...] = theirs.rows, theirs.state
            new.arena.epochs.of[...] = old.arena.epochs.of
            new.ready(applied=self.step)

        new.do(serve)
        self.shards[index] = new

    def dialogue(self, callee: int, caller: int, incarnation: int = 1, generation: int = 1) -> Dialogue:
        shard = self.shards[callee]
        me = Identity(self.spec.job_uid, "shard", caller, incarnation, generation)
        return Dialogue(shard.peer, KEY, me, shard.identity(), shard.service.encoding, WAIT_S)

    def close(self) -> None:
        self.exchange.close()
        for shard in self.shards:
            shard.close()


def parity_of(shard: ShardThread) -> redundancy.Redundancy:
    assert shard.redundancy is not None
    return shard.redundancy


@pytest.fixture
def running(job: JobSpec, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    monkeypatch.setattr(redundancy, "INTERVAL_S", 0.05)
    running = Job(job)
    yield running
    running.close()


def test_what_is_pushed_is_soon_in_the_parity(running: Job) -> None:
    for _ in range(2):
        for _ in range(3):
            running.push()
        running.protect()
        running.check()


def test_pushes_go_on_while_flushes_are_under_way(running: Job) -> None:
    for _ in range(30):
        running.push()
    running.protect()
    running.check()


def test_broken_connections_lose_nothing_and_double_nothing(running: Job) -> None:
    for turn in range(8):
        running.push()
        running.shards[turn % SHARDS].do(running.shards[turn % SHARDS].break_connections)
    running.protect()
    running.check()


def test_a_new_process_gets_and_gives_everything_anew(running: Job) -> None:
    running.push()
    running.protect()
    running.replace(1)
    running.follow()
    running.push()
    running.protect()
    running.check()


def test_nothing_is_protected_while_a_holder_is_away(running: Job) -> None:
    running.push()
    running.protect()
    running.shards[2].close()
    # The holders of shard 0 are 1 and 2.
    wait_for(lambda: (running.exchange.heartbeat(0), running.exchange.protected()[0] == -1)[1])
    running.replace(2)
    running.follow()
    running.push()
    running.protect()
    running.check()


def test_small_flushes_bring_all_rows_in_the_end(job: JobSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that a parity lacks come a few at a time, and pushes change them meanwhile."""
    monkeypatch.setattr(redundancy, "INTERVAL_S", 0.05)
    monkeypatch.setattr(redundancy, "FLUSH_BYTES", 64)
    running = Job(job)
    try:
        for _ in range(3):
            running.push()
        running.replace(3)
        running.follow()
        for _ in range(20):
            running.push()
        running.protect()
        running.check()
    finally:
        running.close()


def test_a_process_that_has_a_successor_is_refused(running: Job) -> None:
    with running.dialogue(1, 0, incarnation=2):
        pass
    with pytest.raises(HandshakeError, match="newer incarnation of shard/0"):
        running.dialogue(1, 0)


def test_a_shard_of_another_generation_waits(running: Job) -> None:
    with running.dialogue(1, 0, incarnation=2) as dialogue, pytest.raises(NotReadyError):
        dialogue.ask(*pack(Operation.STAND, 2, Stand()), Operation.STANDING)


def test_who_is_no_member_has_nothing_in_the_parity(running: Job) -> None:
    with running.dialogue(0, 1, incarnation=2) as dialogue, pytest.raises(HandshakeError, match="keeps no parity for"):
        dialogue.ask(*pack(Operation.STAND, 1, Stand()), Operation.STANDING)


@pytest.mark.parametrize("asked", [Read(1, 0, 1), Read(0, 5, 2), Read(0, 0, 10_000), Read(0, -1, 2), Read(0, 0, 1, 2)])
def test_rows_that_are_not_there_are_refused(running: Job, asked: Read) -> None:
    with running.dialogue(1, 0, incarnation=2) as dialogue, pytest.raises(HandshakeError, match="no "):
        dialogue.ask(*pack(Operation.READ, 1, asked), Operation.ROWS)


def test_rows_come_with_the_points_at_which_they_are(running: Job) -> None:
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


def test_a_trainer_keeps_what_either_the_save_or_parity_lacks(running: Job) -> None:
    """Parity alone lets nothing go while there is room: two shards may be lost that are in one stripe."""
    for _ in range(3):
        running.push()
    running.protect()
    assert running.exchange.forgotten() == (0,) * SHARDS
    assert running.exchange.kept() == 0.0  # and yet nothing is in danger
