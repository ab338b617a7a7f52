"""A simulated cluster with one job: the real data plane of its shards and trainers, in one thread, from one seed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from cpr_contract.roster import ShardRoster
from cpr_trainer.checkpoint.format import data_pins
from cpr_trainer.shard import main
from cpr_trainer.shard.redundancy import Redundancy
from cpr_trainer.shard.service import Service
from simulation.data_plane.anchors import Anchors
from simulation.data_plane.arriving_data import ArrivingData
from simulation.data_plane.calm import FIRST
from simulation.data_plane.checker import Checker
from simulation.data_plane.clock import Process, Scheduler
from simulation.data_plane.groups import Group
from simulation.data_plane.network import Network
from simulation.data_plane.operator_stub import OperatorStub
from simulation.data_plane.patches import patched
from simulation.data_plane.pods import ShardPod
from simulation.data_plane.probes import probes_installed
from simulation.data_plane.signals import Kernel
from simulation.data_plane.storage import SimulatedStore
from simulation.data_plane.suspension import Suspension
from simulation.data_plane.trainer_pods import TrainerPod
from simulation.data_plane.workload import Workload


class Cluster:
    """`probes` counts rare states. `newest` are the pods of the shards now, `pods` all that ever were.

    `armed`: processes that are killed after a number of lines. `damaged`: an object of the store was. `dense_save`: the
    newest save of a dense state, and its step. `lossy`: copies of pushes were lost while the job stopped.
    """

    def __init__(self, seed: int, alter: Callable[[Workload], Workload] = lambda workload: workload) -> None:
        self.seed = seed
        self.rng = random.Random(f"a world of {seed}")
        self.workload = alter(Workload.draw(seed, self.rng))
        self.probes: Counter[str] = Counter()
        self.scheduler = Scheduler(random.Random(self.rng.getrandbits(64)))
        self.network = Network(self.scheduler, random.Random(self.rng.getrandbits(64)))
        if self.workload.expected_table is not None:  # rebuilds read thousands of slots
            self.network.capacity = max(self.network.capacity, 4_000)
        self.kernel = Kernel(self.scheduler, random.Random(self.rng.getrandbits(64)))
        self.kernel.terminate = self._terminate
        self.store = SimulatedStore(self.scheduler, random.Random(self.rng.getrandbits(64)), self.probes)
        self.group = Group(self.scheduler, self.workload.job.trainers)
        self.newest: list[ShardPod] = []
        self.pods: list[ShardPod] = []
        self.trainers: list[TrainerPod] = []
        self.services: dict[Process | None, Service] = {}
        self.redundancies: dict[Process | None, Redundancy] = {}
        self.armed: dict[Process, int] = {}
        self.damaged = self.lossy = False
        self.dense_save = 0, FIRST
        self.anchors = Anchors(self)
        self.suspension = Suspension(self)
        self.arriving: ArrivingData | None = None
        if self.workload.follows:
            rng = random.Random(f"the data of {seed}")
            self.arriving = ArrivingData(self.workload.job, self.workload.last_step, rng)
        self.operator = OperatorStub(self)
        self.checker: Checker

    @property
    def generation(self) -> int:
        return self.operator.generation

    @property
    def finished(self) -> bool:
        """True if all trainers have trained to the end, and their last cut is in the store."""
        return all(each.finished and not each.dead for each in self.trainers)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start the job. When the block ends, all of it is gone."""
        with (
            pytest.MonkeyPatch.context() as patch,
            probes_installed(self),
            patched(self.scheduler, self.network, self.kernel, self.rng),
        ):
            patch.setattr(main, "open_store", lambda *_place: self.store)
            patch.setattr(data_pins, "RESTATE_EVERY", 3)
            self.checker = Checker(self)
            self.operator.start()
            try:
                yield
            finally:
                self.scheduler.close()
                for trainer in self.trainers:
                    trainer.close()

    def serving_services(self) -> list[Service]:
        """The services of the newest pods that live."""
        return [self.services[pod.server] for pod in self.newest if pod.serving and pod.server in self.services]

    def successor_of(self, roster: ShardRoster) -> ShardRoster:
        """The roster of an incarnation after this one."""
        return self.operator.successor_of(roster)

    def _terminate(self, process: Process) -> None:
        for pod in self.pods:
            pod.terminate(process)
