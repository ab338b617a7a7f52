"""A shard's part in parity: brings its rows into the parity of others, and keeps parity for others.

All on the main thread, but for the threads that wait for the network.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import replace
from queue import Empty, SimpleQueue

from cpr_contract.codec import from_json, to_json
from cpr_contract.env import ROLE_SHARD
from cpr_contract.roster import Peer, ShardRoster
from cpr_contract.spec import JobSpec, samples_at
from cpr_trainer.embedding.arena import Home
from cpr_trainer.exchange.handshake import Identity
from cpr_trainer.parity.coding import Parts, Ring
from cpr_trainer.parity.desk import Desk
from cpr_trainer.parity.dialogue import Dialogue
from cpr_trainer.parity.flush import FlushAccount, Rebuilt
from cpr_trainer.parity.journal import Journal
from cpr_trainer.parity.link import Heard, HolderLink
from cpr_trainer.parity.rebuild import Neighbours, rebuild
from cpr_trainer.parity.store import ParityStore
from cpr_trainer.shard.progress import Progress
from cpr_trainer.shard.service import Service

_LOG = logging.getLogger(__name__)

#: How long changes wait for a flush.
INTERVAL_S = 0.5
#: A flush begins before its time once it is of this size; and of a part that its parity lacks it brings so much.
FLUSH_BYTES = 8 << 20
#: A holder that does not answer for so long is gone: the other parts do not wait for it.
PATIENCE_S = 3.0


class Redundancy:
    """Flushes what `service` changes to the shards that `roster` names. `rng` names this process and its parity.

    `desk` answers the other shards.
    """

    def __init__(  # noqa: PLR0913, PLR0917 -- who flushes what to whom, and as whom
        self, job: JobSpec, roster: ShardRoster, home: Home, service: Service, key: bytes, rng: random.Random
    ) -> None:
        self._job = job
        self._service = service
        self._key = key
        self._roster = roster
        self._home = home
        ring, parts = Ring(job.shards, job.parity_shards), Parts.of(home.placement, job.parity_shards)
        segments = home.arena.segments
        shapes = [(rows, mine.dim, mine.state.shape[1]) for rows, mine in zip(parts.sizes, segments, strict=True)]
        self._ring, self._parts, self._shapes = ring, parts, shapes
        self._holders = ring.holders(roster.index)
        self._journal = Journal(home.arena, parts, _name(rng))
        self._store = ParityStore(ring.data_shards, shapes, _name(rng))
        self.desk = Desk(ring, roster.index, shapes, self._store, self._journal)
        service.metrics.parity_bytes.set(ParityStore.size_bytes(shapes))
        self._mail: SimpleQueue[Heard] = SimpleQueue()
        self._links = [
            HolderLink(part, self._connect, self._mail.put, random.Random(_name(rng)))
            for part in range(ring.data_shards)
        ]
        self._gone_since: dict[int, float] = {}
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
        """Fill the arena with what parity has of this shard; see `rebuild`. For a thread aside; nothing is served."""
        generation = roster.counters.generation
        peers = {peer.index: peer for peer in roster.shards}

        def connect(shard: int) -> Dialogue:
            peer = peers.get(shard)
            if peer is None or not peer.host:
                raise ConnectionError(f"shard {shard} has no address")
            return self._connect(peer, generation)

        with Neighbours(self._ring, roster.index, self._shapes, generation, connect) as neighbours:
            return rebuild(self._home, self._parts, neighbours, generation, roster.floor_samples, cancelled)

    def adopt(self, rebuilt: Rebuilt) -> None:
        """The rows are what parity has; they are about to be served."""
        self._journal.adopt(rebuilt.points, rebuilt.mark)

    def turn(self, now_s: float) -> None:
        """Take in what holders said, and flush if it is time to."""
        self._read_mail(now_s)
        progress = self._service.progress
        if progress is None or not progress.total_samples:
            return  # nothing is there, or nobody has told yet what steps stand for
        for part, since in tuple(self._gone_since.items()):
            if now_s - since > PATIENCE_S:
                self._lose(part)
        self._flush_if_due(progress, now_s)
        self._tell()

    def close(self) -> None:
        """End the threads."""
        for link in self._links:
            link.close()

    def _on_serving(self) -> None:
        """The rows are there, or are about to be loaded anew."""
        progress = self._service.progress
        self.desk.generation = None if progress is None else progress.generation
        if progress is None:
            self._journal.forget()
            self._store.start_over()
            self._gone_since.clear()
            self._tell()
        self._sealed = ""
        self._follow()

    def _follow(self) -> None:
        """Let the links have whom they talk to: nobody while there are no rows."""
        generation = self.desk.generation
        peers = {peer.index: peer for peer in self._roster.shards}
        for link, holder in zip(self._links, self._holders, strict=True):
            link.follow(peers.get(holder) if generation is not None else None, generation or 0)

    def _read_mail(self, now_s: float) -> None:
        while True:
            try:
                heard = self._mail.get_nowait()
            except Empty:
                return
            if heard.generation != self.desk.generation:
                continue
            if heard.point is None:
                self._gone_since.setdefault(heard.part, now_s)
                continue
            self._gone_since.pop(heard.part, None)
            again = self._journal.heard(heard.part, heard.point)
            if again is not None and heard.first:
                self._links[heard.part].send(again)

    def _lose(self, part: int) -> None:
        _LOG.warning("shard %d does not answer: rows are without parity there", self._holders[part])
        del self._gone_since[part]
        self._journal.lost(part)
        self._links[part].begin_again()

    def _flush_if_due(self, progress: Progress, now_s: float) -> None:
        journal = self._journal
        if journal.under_way or not journal.has_parity:
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

    def _tell(self) -> None:
        """Let trainers know what parity protects."""
        protected = self._journal.protected if self._journal.intact else None
        if protected != self._protected:
            self._protected = protected
            account = None if protected is None else from_json(FlushAccount, protected)
            self._service.protected_step = -1 if account is None else min(account.applied)
            self._service.protected_samples = None if account is None else account.whole_samples

    def _connect(self, peer: Peer, generation: int) -> Dialogue:
        me = Identity(self._job.job_uid, ROLE_SHARD, self._roster.index, self._roster.incarnation, generation)
        callee = replace(me, index=peer.index, incarnation=peer.incarnation)
        return Dialogue(peer, self._key, me, callee, self._service.encoding, self._job.silence_s)


def _name(rng: random.Random) -> int:
    return rng.getrandbits(53)
