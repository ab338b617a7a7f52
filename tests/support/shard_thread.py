"""A shard's service and sockets on a thread of the test, without store or rosters: quick to start, easy to disturb."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from time import monotonic

import numpy as np

from cpr_contract import env
from cpr_contract.limits import MAX_TRAINERS
from cpr_contract.manifests import RowUpdates
from cpr_contract.roster import Counters, Peer
from cpr_contract.spec import JobSpec
from cpr_trainer.embedding.arena import Arena, LocalRows
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.embedding.segments import Seeding
from cpr_trainer.exchange.handshake import Identity
from cpr_trainer.runtime import Certificates, listen
from cpr_trainer.shard.redundancy import Redundancy
from cpr_trainer.shard.server import Server
from cpr_trainer.shard.service import Service
from cpr_trainer.shard.state import Losses, Progress
from cpr_trainer.shard.status import Metrics
from cpr_trainer.shard.steps import StepService
from support.shard_job import HOST, KEY, shard_roster


class ShardThread:
    """Serves shard `index` until closed. `do` runs something between two turns of its loop."""

    def __init__(
        self,
        job: JobSpec,
        index: int = 0,
        incarnation: int = 1,
        *,
        ready: bool = True,
        certificates: Certificates | None = None,
    ) -> None:
        self.certificates = certificates
        self.job, self.index, self.incarnation, self.generation = job, index, incarnation, 1
        placement = Placement.of(job.model, job.shards)
        self.arena = Arena.empty(job, *placement.sizes(index))
        self.arena.seed(placement, index, Seeding.of(job.model, job.data.seed))
        kind = StepService if job.per_step else Service
        self.service = kind(job, placement, index, self.arena, Metrics())
        self.redundancy: Redundancy | None = None
        if job.parity_shards:
            local = LocalRows(self.arena, placement, index, Seeding.of(job.model, job.data.seed))
            roster = shard_roster(index=index, incarnation=incarnation, newest_incarnation=incarnation)
            self.redundancy = Redundancy(job, roster, local, self.service, KEY, random.Random(), certificates)
        self.newest = np.zeros(MAX_TRAINERS, np.int64)
        self.newest_shards = np.zeros(job.shards, np.int64)
        self.server = self._listen(0)
        self.peer = Peer(index, incarnation, HOST, self.server.port - env.DATA_PORT)
        self.frozen = False
        if ready:
            self.ready()
        self._jobs: list[Callable[[], None]] = []
        self._done = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _listen(self, port: int) -> Server:
        return Server(
            listen(HOST, port),
            KEY,
            self.identity,
            self.service,
            trainers=self.job.trainers,
            limit_bytes=1 << 20,
            newest=self.newest,
            newest_shards=self.newest_shards,
            parity_server=None if self.redundancy is None else self.redundancy.server,
            certificates=self.certificates,
        )

    def begin_process(self) -> None:
        """Close the server, and let another one listen in its place, with what outlives a server."""

        def begin() -> None:
            port = self.server.port
            self.server.close()
            self.server = self._listen(port)

        self.do(begin)

    def identity(self) -> Identity:
        return Identity(self.job.job_uid, "shard", self.index, self.incarnation, self.generation)

    def ready(self, generation: int = 1, applied: int = 0, pushed: int = 0) -> None:
        """Serve a generation from here on; before the thread starts, or by `do`."""
        self.generation = generation
        self.service.counters = Counters(roster=generation, group=1, generation=generation)
        trainers = self.job.trainers
        row_updates = RowUpdates((pushed,) * trainers)
        self.service.start(Progress(generation, (applied,) * trainers, Losses.restored((), trainers), row_updates))

    @property
    def progress(self) -> Progress:
        assert self.service.progress is not None
        return self.service.progress

    def do(self, action: Callable[[], object]) -> None:
        with self._done:
            self._jobs.append(lambda: (action(), None)[1])
            self._done.wait_for(lambda: not self._jobs)

    def freeze(self) -> None:
        """Neither read nor answer, as a stopped process; what `do` is given still runs."""
        self.do(lambda: setattr(self, "frozen", True))

    def thaw(self) -> None:
        self.do(lambda: setattr(self, "frozen", False))

    def break_connections(self) -> None:
        for connection in tuple(self.server._joined()):
            self.server._close(connection)

    def close(self) -> None:
        self._closing = True
        self._thread.join()

    def _run(self) -> None:
        while not self._closing:
            if not self.frozen:
                self.server.tick(0.01, monotonic)
                if self.redundancy is not None:
                    self.redundancy.tick(monotonic())
            with self._done:
                while self._jobs:
                    self._jobs[0]()
                    self._jobs.pop(0)
                self._done.notify_all()
        self.server.close()
        if self.redundancy is not None:
            self.redundancy.close()
