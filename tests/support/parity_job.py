"""All shards of a job with parity, on threads of the test, and its trainer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cpr_contract.spec import JobSpec
from cpr_trainer.embedding.access import find_access
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.exchange import Exchange, ShardsUnavailableError
from cpr_trainer.exchange.handshake import Identity
from cpr_trainer.parity.coding import Image, Parts, Ring, View
from cpr_trainer.parity.peer_connection import PeerConnection
from cpr_trainer.shard.redundancy import Redundancy
from support.exchanges import WAIT_S, follow, wait_for
from support.parity_ring import same
from support.shard_job import KEY, shard_roster
from support.shard_thread import ShardThread

SHARDS, K = 4, 2


class ParityJob:
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
        for shard in self.shards:
            roster = shard_roster(index=shard.index, incarnation=shard.incarnation, shards=peers)
            shard.do(lambda shard=shard, roster=roster: parity_of(shard).follow(roster))
        follow(self.exchange, *self.shards, roster=self.step + 2)
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
            except ShardsUnavailableError:
                self.exchange.wait_ready(WAIT_S)
            else:
                return

    def protect(self) -> None:
        """Wait until parity holds all that was pushed."""
        samples = self.step * self.spec.data.batch_size
        wait_for(lambda: self.protected() == (samples,) * SHARDS)

    def protected(self) -> tuple[int, ...]:
        """Return the newest reports of the shards about parity; they are polled again."""
        self.exchange.announce_cut(0)
        return self.exchange.protected()

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

    def connection(self, server: int, client: int, incarnation: int = 1, generation: int = 1) -> PeerConnection:
        shard = self.shards[server]
        me = Identity(self.spec.job_uid, "shard", client, incarnation, generation)
        return PeerConnection(shard.peer, KEY, me, shard.identity(), shard.service.encoding, WAIT_S)

    def close(self) -> None:
        self.exchange.close()
        for shard in self.shards:
            shard.close()


def parity_of(shard: ShardThread) -> Redundancy:
    assert shard.redundancy is not None
    return shard.redundancy
