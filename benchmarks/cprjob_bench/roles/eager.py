"""ECRec's parity in shards and trainers: shards send the changes of each push, and trainers commit in two phases.

A shard updates its rows, sends the differences to the holders of its parity, and reports the push as staged once all
holders have staged it. When all shards have staged a push, the trainer requests its commit. The shards then add the
staged differences to their parity and acknowledge the push. Meanwhile later steps run, within the window for pushes.

ECRec stages its own rows, too. This implementation saves that copy, in favour of the mode. It implements no recovery,
because it is for measurements without failures.
"""

from __future__ import annotations

import contextlib
import logging
import random
import selectors
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any

from cpr_contract.env import ROLE_SHARD, ROLE_TRAINER
from cpr_contract.roster import Peer, ShardRoster
from cpr_contract.spec import JobSpec
from cpr_trainer.arrays import Ints
from cpr_trainer.embedding.arena import LocalRows
from cpr_trainer.exchange.frames import Frame, FrameError, Header, Operation
from cpr_trainer.exchange.handshake import HandshakeError, Hello, Identity, Session
from cpr_trainer.exchange.link import Link
from cpr_trainer.parity.coding import Parts, PartShape, Ring
from cpr_trainer.parity.flush import FlushAccount, Rebuilt
from cpr_trainer.parity.messages import most_bytes
from cpr_trainer.parity.parity_server import Caller
from cpr_trainer.parity.peer_connection import NotReadyError, PeerConnection
from cpr_trainer.shard.server import Connection, Server
from cpr_trainer.shard.service import Service
from cprjob_bench.roles.differences import Before, Push, Sums, pack_differences, unpack_differences

#: Operations of a shard that has staged a push, and of a trainer that commits it.
STAGED, COMMIT = Operation.POSITION, Operation.QUERY_POSITION


class Rounds:
    """The commits of one trainer to its `links`. All calls are under the exchange's lock."""

    def __init__(self) -> None:
        self.links: list[EagerLink] = []
        self._votes = defaultdict[int, set[int]](set)

    def staged(self, shard: int, step: int) -> None:
        """Record that a shard has staged a step's push. Commit the push once all shards have."""
        votes = self._votes[step]
        votes.add(shard)
        if len(votes) == len(self.links):
            del self._votes[step]
            for link in self.links:
                link.commit(step)


class EagerLink(Link):
    """A link with two-phase commits of pushes. All links of a process share `rounds`."""

    rounds = Rounds()

    def __init__(self, session: Session, peer: Peer, rng: random.Random, now: float) -> None:
        super().__init__(session, peer, rng, now)
        self.rounds.links.append(self)

    def commit(self, step: int) -> None:
        """Send the commit of a step's push and of the parity of that step."""
        self._send(self._session.header(COMMIT, step))

    def _on_answer(self, header: Header) -> None:
        if header.operation is STAGED:
            self.rounds.staged(self.peer.index, header.step)
        else:
            super()._on_answer(header)


_LOG = logging.getLogger(__name__)
_RETRY_S = 0.05

#: A push and its frame.
_Item = tuple[Push, tuple[Header, list[Any]]]


class EagerParity:
    """Serves other shards' differences and the trainers' commits; replaces the product's `ParityServer`.

    A byte sent to `bell` wakes the serving thread, which selects on `ear`.
    """

    def __init__(self, ring: Ring, index: int, sums: Sums, service: Service, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.bell, self.ear = socket.socketpair()
        self.bell.settimeout(0.0)
        self.ear.settimeout(0.0)
        self._members = ring.members(index)
        self._shapes = [PartShape(len(rows), rows.shape[1], state.shape[1]) for rows, state in sums.sums]
        self._sums = sums
        self._service = service
        self._delivered: SimpleQueue[Push] = SimpleQueue()
        self._missing = defaultdict[Push, int](int)
        self._held: dict[Push, tuple[EagerConnection, Header]] = {}
        self._committed = defaultdict[int, int](int)

    def on_frame(self, caller: Caller, frame: Frame) -> None:
        """Stage another shard's differences. Raises FrameError."""
        progress = self._service.progress
        if progress is None or frame.header.generation != progress.generation:
            caller.send(Header(Operation.NOT_READY))
            return
        if frame.header.operation is not Operation.FLUSH or caller.rank not in self._members:
            raise FrameError(f"shard {caller.rank} sent {frame.header.operation.name}")
        push, differences = unpack_differences(frame, self._shapes)
        self._sums.stage(push, caller.rank, differences)
        caller.send(Header(Operation.POSITION, generation=progress.generation))

    def expect(self, push: Push, holders: int) -> None:
        """Set the number of holders that must stage a push before it is reported to its trainer."""
        self._missing[push] = holders

    def deliver(self, push: Push) -> None:
        """Record that a holder has staged a push. Thread-safe."""
        self._delivered.put(push)
        with contextlib.suppress(BlockingIOError):  # a wake-up is pending already
            self.bell.send(b"\0")

    def defer(self, connection: EagerConnection, header: Header) -> bool:
        """Return whether an acknowledgement must wait for its commit, and keep it if so."""
        push = (header.rank, header.step)
        if header.step <= self._committed[header.rank]:
            return False
        self._held[push] = (connection, header)
        self._report_if_staged(push)
        return True

    def committed(self, rank: int) -> int:
        """Return the last committed step of a rank."""
        return self._committed[rank]

    def commit(self, push: Push) -> None:
        """Commit a trainer's push and send its acknowledgement."""
        self._sums.commit(push)
        rank, step = push
        self._committed[rank] = max(self._committed[rank], step)
        if (held := self._held.pop(push, None)) is not None:
            connection, header = held
            connection.send(header)

    def settle(self) -> None:
        """Process delivered pushes."""
        with contextlib.suppress(BlockingIOError):
            while self.ear.recv(4096):
                pass
        while True:
            try:
                push = self._delivered.get_nowait()
            except Empty:
                return
            self._missing[push] -= 1
            self._report_if_staged(push)

    def _report_if_staged(self, push: Push) -> None:
        if push in self._held and self._missing.get(push, 0) <= 0:
            self._missing.pop(push, None)
            connection, header = self._held[push]
            connection.send(header._replace(operation=STAGED))


class EagerConnection(Connection):
    """A connection that defers acknowledgements until their commit, once `parity` is set."""

    parity: EagerParity | None = None

    def send(self, header: Header, *payload: Any) -> None:
        """See `Connection`."""
        if self.parity is not None:
            if header.operation is Operation.ACK and self.parity.defer(self, header):
                return
            if header.operation is Operation.PONG:  # it acknowledges, too
                header = header._replace(step=min(header.step, self.parity.committed(header.rank)))
        super().send(header, *payload)


class EagerServer(Server):
    """A server that accepts commits, and wakes when a holder has staged a push."""

    def __init__(self, *arguments: Any, parity_server: EagerParity, **named: Any) -> None:
        super().__init__(*arguments, parity_server=parity_server, **named)  # type: ignore[arg-type]
        self._eager = parity_server
        self._selector.register(parity_server.ear, selectors.EVENT_READ, parity_server)

    def tick(self, timeout_s: float, clock: Callable[[], float]) -> None:
        """See `Server`."""
        super().tick(timeout_s, clock)
        self._eager.settle()

    def _join(self, connection: Connection, hello: Hello, now: float) -> None:
        super()._join(connection, hello, now)
        if isinstance(connection, EagerConnection):
            connection.parity = self._eager

    def _on_frame(self, connection: Connection, frame: Frame, now: float) -> None:
        if connection.role == ROLE_TRAINER and frame.header.operation is COMMIT:
            self._eager.commit((frame.header.rank, frame.header.step))
        else:
            super()._on_frame(connection, frame, now)


class EagerRedundancy:
    """Replaces the product's `Redundancy`, with the same methods."""

    def __init__(  # noqa: PLR0913, PLR0917 -- the product's signature
        self, job: JobSpec, roster: ShardRoster, local: LocalRows, service: Service, key: bytes, rng: random.Random
    ) -> None:
        del rng
        ring, self._parts = Ring(job.shards, job.parity_shards), Parts.of(local.placement, job.parity_shards)
        self._arena, self._service, self._job, self._key, self._index = local.arena, service, job, key, roster.index
        self._incarnation = roster.incarnation
        shapes = self._parts.shapes(local.arena)
        self.sums = Sums(shapes)
        service.metrics.parity_bytes.set(self.sums.nbytes)
        self.server = EagerParity(ring, roster.index, self.sums, service, most_bytes(shapes))
        self._senders = [_Sender(holder, self._connect, self.server.deliver) for holder in ring.holders(roster.index)]
        self._before: Before | None = None
        service.before_change, service.on_change = self._on_before_change, self._on_change
        self.follow(roster)

    def follow(self, roster: ShardRoster) -> None:
        """Send to the shards in this roster."""
        peers = {peer.index: peer for peer in roster.shards}
        for sender in self._senders:
            sender.peer = peers.get(sender.holder)

    def rebuild(self, roster: ShardRoster, cancelled: Callable[[], bool]) -> tuple[FlushAccount, Rebuilt] | None:
        """Return None: there is no recovery."""
        del roster, cancelled
        return None

    def adopt(self, rebuilt: Rebuilt) -> None:
        """Do nothing: there is no recovery."""

    def tick(self, now_s: float) -> None:
        """Do nothing: there are no timers."""

    def close(self) -> None:
        """Do nothing: threads end with the process."""

    def _on_before_change(self, slots: Ints) -> None:
        self._before = Before(self._arena, self._parts, slots)

    def _on_change(self, _slots: Ints) -> None:
        before, header = self._before, Header.unpack(self._arena.redo.note)
        if before is None:
            return
        push = (header.rank, header.step)
        self.server.expect(push, len(self._senders))
        for sender, differences in zip(self._senders, before.differences(), strict=True):
            sender.send((push, pack_differences(header.generation, push, differences)))
        self._before = None

    def _connect(self, peer: Peer) -> PeerConnection:
        progress = self._service.progress
        generation = 0 if progress is None else progress.generation
        me = Identity(self._job.job_uid, ROLE_SHARD, self._index, self._incarnation, generation)
        callee = replace(me, index=peer.index, incarnation=peer.incarnation)
        return PeerConnection(peer, self._key, me, callee, self._service.encoding, self._job.silence_s)


class _Sender:
    """A thread that sends differences to one holder, in order, and waits until each is staged."""

    def __init__(self, holder: int, connect: Callable[[Peer], PeerConnection], deliver: Callable[[Push], None]) -> None:
        self.holder = holder
        self.peer: Peer | None = None
        self._connect = connect
        self._deliver = deliver
        self._queue: SimpleQueue[_Item] = SimpleQueue()
        threading.Thread(target=self._run, name=f"eager {holder}", daemon=True).start()

    def send(self, item: _Item) -> None:
        """Queue an item."""
        self._queue.put(item)

    def _run(self) -> None:
        waiting = self._queue.get()
        while True:
            peer = self.peer
            if peer is None or not peer.host:
                time.sleep(_RETRY_S)
                continue
            try:
                with contextlib.closing(self._connect(peer)) as connection:
                    while True:
                        push, frame = waiting
                        connection.request(*frame, Operation.POSITION)
                        self._deliver(push)
                        waiting = self._queue.get()
            except (OSError, FrameError, HandshakeError, NotReadyError) as error:
                _LOG.info("no parity at shard %d: %s", self.holder, error)
                time.sleep(_RETRY_S)
