"""A shard's redundancy: it flushes its rows into the parity of other shards, and keeps parity for others.

All of it runs on the main thread, except the threads that wait for the network.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import replace
from queue import SimpleQueue

from cpr_contract.codec import from_json, to_json
from cpr_contract.env import ROLE_SHARD
from cpr_contract.roster import Peer, ShardRoster
from cpr_contract.spec import JobSpec, samples_at
from cpr_trainer.embedding.arena import LocalRows
from cpr_trainer.exchange.handshake import Identity
from cpr_trainer.parity.coding import Parts, Ring
from cpr_trainer.parity.flush import FlushAccount, Rebuilt
from cpr_trainer.parity.holder_link import HolderLink, HolderReply
from cpr_trainer.parity.journal import Journal
from cpr_trainer.parity.parity_server import ParityServer, ParityStore
from cpr_trainer.parity.peer_connection import PeerConnection
from cpr_trainer.parity.rebuild import Neighbours, rebuild
from cpr_trainer.runtime import Certificates
from cpr_trainer.shard.service import Service
from cpr_trainer.shard.state import Progress

_LOG = logging.getLogger(__name__)

#: The interval of flushes.
INTERVAL_S = 0.5
#: A flush starts early once it has this size. While a parity is being built, a flush brings this much of its part.
FLUSH_BYTES = 8 << 20
#: A holder that does not answer for this long is given up: the other parts do not wait for it.
HOLDER_TIMEOUT_S = 3.0


class Redundancy:
    """Flushes the changes of `service` to the shards that `roster` names. `rng` names this process and its parity.

    `server` answers the other shards.
    """

    def __init__(  # noqa: PLR0913, PLR0917 -- the rows, the peers, and this shard's identity
        self,
        job: JobSpec,
        roster: ShardRoster,
        local: LocalRows,
        service: Service,
        key: bytes,
        rng: random.Random,
        certificates: Certificates | None = None,
    ) -> None:
        self._job = job
        self._service = service
        self._key = key
        self._certificates = certificates
        self._roster = roster
        self._local = local
        ring, parts = Ring(job.shards, job.parity_shards), Parts.of(local.placement, job.parity_shards)
        shapes = parts.shapes(local.arena)
        self._ring, self._parts, self._shapes = ring, parts, shapes
        self._holders = ring.holders(roster.index)
        self._journal = Journal(local.arena, parts, _name(rng))
        self._store = ParityStore(ring.data_shards, shapes, _name(rng))
        self.server = ParityServer(ring, roster.index, shapes, self._store, self._journal)
        service.metrics.parity_bytes.set(ParityStore.size_bytes(shapes))
        self._replies: SimpleQueue[HolderReply] = SimpleQueue()
        self._links = [
            HolderLink(part, self._connect, self._replies.put, random.Random(_name(rng)))
            for part in range(ring.data_shards)
        ]
        self._unresponsive_since: dict[int, float] = {}
        self._sealed_s = 0.0
        self._sealed = ""
        self._protected: str | None = None
        service.before_change = self._journal.note
        service.on_serving = self._on_serving

    def follow(self, roster: ShardRoster) -> None:
        """Flush to the shards that this roster names."""
        self._roster = roster
        self._follow()

    def rebuild(self, roster: ShardRoster, cancelled: Callable[[], bool]) -> tuple[FlushAccount, Rebuilt] | None:
        """Fill the arena from parity; see `rebuild`. Call it on another thread, while nothing is served."""
        generation = roster.counters.generation
        peers = {peer.index: peer for peer in roster.shards}

        def connect(shard: int) -> PeerConnection:
            peer = peers.get(shard)
            if peer is None or not peer.host:
                raise ConnectionError(f"shard {shard} has no address")
            return self._connect(peer, generation)

        with Neighbours(self._ring, roster.index, self._shapes, generation, connect) as neighbours:
            return rebuild(self._local, self._parts, neighbours, generation, roster.floor_samples, cancelled)

    def adopt(self, rebuilt: Rebuilt) -> None:
        """Continue from rows that were rebuilt from parity, before they are served."""
        self._journal.adopt(rebuilt.points, rebuilt.mark)

    def tick(self, now_s: float) -> None:
        """Handle the replies of holders, and flush if that is due."""
        self._handle_replies(now_s)
        progress = self._service.progress
        if progress is None or not progress.total_samples:
            return  # nothing is served, or no trainer has sent the size of the job yet
        for part, since in tuple(self._unresponsive_since.items()):
            if now_s - since > HOLDER_TIMEOUT_S:
                _LOG.warning("shard %d does not answer: rows are without parity there", self._holders[part])
                del self._unresponsive_since[part]
                self._journal.drop_parity(part)
                self._links[part].restart()
        self._flush_if_due(progress, now_s)
        self._publish_protected()

    def close(self) -> None:
        """End the threads."""
        for link in self._links:
            link.close()

    def _on_serving(self) -> None:
        """Follow the start and the end of serving."""
        progress = self._service.progress
        self.server.generation = None if progress is None else progress.generation
        if progress is None:
            self._journal.reset()
            self._store.reset()
            self._unresponsive_since.clear()
            self._publish_protected()
        self._sealed = ""
        self._follow()

    def _follow(self) -> None:
        """Set the peers of the links; they have none while nothing is served."""
        generation = self.server.generation
        peers = {peer.index: peer for peer in self._roster.shards}
        for link, holder in zip(self._links, self._holders, strict=True):
            link.follow(peers.get(holder) if generation is not None else None, generation or 0)

    def _handle_replies(self, now_s: float) -> None:
        while not self._replies.empty():
            reply = self._replies.get_nowait()
            if reply.generation != self.server.generation:
                continue
            if reply.point is None:
                self._unresponsive_since.setdefault(reply.part, now_s)
                continue
            self._unresponsive_since.pop(reply.part, None)
            missing = self._journal.on_position(reply.part, reply.point)
            if missing is not None and reply.first:
                self._links[reply.part].send(missing)

    def _flush_if_due(self, progress: Progress, now_s: float) -> None:
        journal = self._journal
        if journal.in_flight or not journal.has_parity:
            return
        due = now_s - self._sealed_s >= INTERVAL_S
        if not (due or journal.building or journal.pending_bytes >= FLUSH_BYTES):
            return
        mark = self._mark(progress)
        if mark == self._sealed and not journal.building:
            return
        self._sealed, self._sealed_s = mark, now_s
        for part, flush in journal.seal(mark, FLUSH_BYTES).items():
            self._links[part].send(flush)
            self._service.metrics.flushed_bytes.inc(flush.nbytes)
        self._service.metrics.flushes.inc()

    def _mark(self, progress: Progress) -> str:
        mark, service = self._service.mark(progress), self._service
        return to_json(
            FlushAccount(
                mark.generation,
                mark.step,
                mark.samples,
                samples_at(min(mark.applied), self._job.data.batch_size, progress.total_samples),
                mark.applied,
                mark.lost,
                mark.row_updates,
                progress.order,
                service.newest_save,
                service.saved_steps,
            )
        )

    def _publish_protected(self) -> None:
        """Set the protected step and samples in answers to trainers and in reports."""
        protected = self._journal.protected if self._journal.intact else None
        if protected != self._protected:
            self._protected = protected
            account = None if protected is None else from_json(FlushAccount, protected)
            self._service.protected_step = -1 if account is None else min(account.applied)
            self._service.protected_samples = None if account is None else account.whole_samples

    def _connect(self, peer: Peer, generation: int) -> PeerConnection:
        me = Identity(self._job.job_uid, ROLE_SHARD, self._roster.index, self._roster.incarnation, generation)
        callee = replace(me, index=peer.index, incarnation=peer.incarnation)
        encoding, answer_s = self._service.encoding, self._job.silence_s
        return PeerConnection(peer, self._key, me, callee, encoding, answer_s, self._certificates)


def _name(rng: random.Random) -> int:
    return rng.getrandbits(53)
