"""A trainer's pod: a process, and with a supervisor further ones that continue from what the last one left."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from cpr_contract.env import ROLE_TRAINER
from cpr_contract.roster import TrainerRoster
from cpr_trainer.embedding.memory import ResumeFile
from simulation.data_plane.clock import Process
from simulation.data_plane.network import close_all
from simulation.data_plane.trainers import ResumeState, Trainer

if TYPE_CHECKING:
    from simulation.data_plane.cluster import Cluster


class TrainerPod:
    """One incarnation of a trainer. `terminated`: it got SIGTERM. `flushed`: it ended by itself, and not in a crash."""

    def __init__(self, cluster: Cluster, roster: TrainerRoster) -> None:
        self.cluster, self.roster = cluster, roster
        self.rank, self.incarnation = roster.index, roster.incarnation
        self.host = f"{ROLE_TRAINER}-{self.rank}-{self.incarnation}"
        self.dead = self.terminated = self.flushed = False
        self.finished = False
        self.pushes = set[int]()  # the steps that this pod has pushed in the generation
        self.trainer: Trainer | None = None
        self.process: Process | None = None
        self.resume: ResumeState | None = None
        self.file = ResumeFile.new() if cluster.workload.supervised else None
        self.begin()

    @property
    def leads(self) -> bool:
        """True if the newest roster makes this trainer the leader."""
        return self.roster.leader == self.rank

    def begin(self) -> None:
        """Begin a process."""
        process = self.process = self.cluster.scheduler.process(f"process of {self.host}", self.host)
        process.at_end += [lambda _status: close_all(self.cluster.network, process), lambda _status: self._ended()]
        file = None if self.file is None else ResumeFile(self.file.descriptor)
        self.trainer = None
        self.cluster.scheduler.spawn(process, lambda: self._run(file))

    def give(self, roster: TrainerRoster) -> None:
        if roster.counters.roster > self.roster.counters.roster:
            self.roster = roster

    def drain(self) -> None:
        """Send it SIGTERM."""
        self.terminated = True

    def kill(self) -> None:
        """Kill the pod."""
        self.dead = True
        self.kill_process()

    def kill_process(self) -> None:
        assert self.process is not None
        self.cluster.scheduler.kill(self.process)

    def close(self) -> None:
        if self.file is not None:
            os.close(self.file.descriptor)

    def _run(self, file: ResumeFile | None) -> None:
        Trainer(self, file).run()
        self.flushed = True
        self.kill()

    def _ended(self) -> None:
        self.cluster.group.break_up()
        self.finished = False
        if self.dead or self.terminated or self.resume is None:
            self.dead = True
            return
        self.cluster.probes["a trainer restarted in its pod"] += 1
        self.begin()
