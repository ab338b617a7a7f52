"""A job in one process: the real data plane of its shards and trainers, in a world that one seed decides."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cpr_contract.roster import ShardRoster
from cpr_trainer.shard import main
from cpr_trainer.shard.redundancy import Redundancy
from cpr_trainer.shard.service import Service
from support.world.chief import Chief
from support.world.group import Group
from support.world.network import Network
from support.world.observed import observed
from support.world.oracle import Oracle
from support.world.plan import Plan
from support.world.pods import ShardPod
from support.world.scheduler import Process, Scheduler
from support.world.seams import inside
from support.world.signals import Kernel
from support.world.store import WorldStore
from support.world.trainers import TrainerPod


class World:
    """`met` counts rare states. `newest` are the pods of the shards now, `pods` all that ever were.

    `armed`: processes that are killed when they have run so many lines. `damaged`: an object of the store was.
    """

    def __init__(self, seed: int, alter: Callable[[Plan], Plan] = lambda plan: plan) -> None:
        self.seed = seed
        self.rng = random.Random(f"a world of {seed}")
        self.plan = alter(Plan.draw(seed, self.rng))
        self.met: Counter[str] = Counter()
        self.scheduler = Scheduler(random.Random(self.rng.getrandbits(64)))
        self.network = Network(self.scheduler, random.Random(self.rng.getrandbits(64)))
        self.kernel = Kernel(self.scheduler, random.Random(self.rng.getrandbits(64)))
        self.kernel.terminate = self._terminate
        self.store = WorldStore(self.scheduler, random.Random(self.rng.getrandbits(64)), self.met)
        self.group = Group(self.scheduler, self.plan.job.trainers)
        self.newest: list[ShardPod] = []
        self.pods: list[ShardPod] = []
        self.trainers: list[TrainerPod] = []
        self.services: dict[Process | None, Service] = {}
        self.redundancies: dict[Process | None, Redundancy] = {}
        self.armed: dict[Process, int] = {}
        self.damaged = False
        self.chief = Chief(self)
        self.oracle: Oracle

    @property
    def generation(self) -> int:
        return self.chief.generation

    @property
    def finished(self) -> bool:
        """Whether all trainers have trained to the end, and their last cut is in the store."""
        return all(each.finished and not each.dead for each in self.trainers)

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Begin the job; in the end all of it is gone."""
        opened, main.open_store = main.open_store, lambda *_place: self.store  # type: ignore[attr-defined]
        try:
            with observed(self), inside(self.scheduler, self.network, self.kernel, self.rng):
                self.oracle = Oracle(self)
                self.chief.begin()
                try:
                    yield
                finally:
                    self.scheduler.close()
        finally:
            main.open_store = opened  # type: ignore[attr-defined]
            for trainer in self.trainers:
                trainer.close()

    def serving_services(self) -> list[Service]:
        """The services of the newest pods that live."""
        return [self.services[pod.server] for pod in self.newest if pod.serving and pod.server in self.services]

    def successor_of(self, roster: ShardRoster) -> ShardRoster:
        """The roster of an incarnation after this one."""
        return self.chief.successor_of(roster)

    def _terminate(self, process: Process) -> None:
        for pod in self.pods:
            pod.terminate(process)
