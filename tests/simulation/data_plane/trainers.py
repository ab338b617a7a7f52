"""A stand-in for the trainers: the real exchange, and around it the order of a step, without a dense network.

As `trainer/loop.py` and `trainer/step.py` have it: wait for all ranks, push missing steps, then look up, agree, push,
step after step, and at the end wait for the last cut. If shards merge steps, the push comes before the sum over
trainers, and a commit after it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from cpr_contract.env import ROLE_TRAINER
from cpr_contract.roster import TrainerRoster
from cpr_trainer.arrays import Ints
from cpr_trainer.embedding.memory import ResumeFile
from cpr_trainer.exchange import WINDOW, Exchange, ShardsUnavailableError
from cpr_trainer.trainer.allreduce.group import missing_steps
from cpr_trainer.trainer.save_coordinator import CutSchedule
from simulation.data_plane.clock import Process, Scheduler
from simulation.data_plane.network import close_all
from support.shard_job import KEY

NO_STATE = -1


class GroupBrokenError(Exception):
    """A member is gone: all meet again."""


class Group:
    """All ranks of a job. `epoch` counts how often they fell apart."""

    def __init__(self, scheduler: Scheduler, trainers: int) -> None:
        self.epoch = 0
        self._scheduler = scheduler
        self._trainers = trainers
        self._values: dict[tuple[int, str], dict[int, int]] = {}

    def break_up(self) -> None:
        """Let all meet again."""
        self.epoch += 1
        self._values.clear()

    def agree(self, epoch: int, subject: str, rank: int, value: int, poll_interrupts: Callable[[], None]) -> int:
        """Return the highest value of a subject, once every rank has sent its own. Raises GroupBrokenError."""
        while True:
            if self.epoch != epoch:
                raise GroupBrokenError
            values = self._values.setdefault((epoch, subject), {})
            values[rank] = value
            if len(values) == self._trainers:
                return max(values.values())
            poll_interrupts()
            self._scheduler.sleep(self._scheduler.rng.uniform(0.0005, 0.003))


if TYPE_CHECKING:
    from simulation.data_plane.cluster import Cluster

T = TypeVar("T")
_SLICE_S = 0.05
#: The filled part of the memory for pushes at which a save is due (`trainer/save_coordinator.py`).
_FULL = 0.75


class RolledBackError(Exception):
    """The newest roster is of another generation."""


@dataclass
class ResumeState:
    """State of a trainer's process in its supervisor, from which the next process resumes: see `trainer/resume.py`."""

    generation: int
    done: int
    pushed: int | None
    exchange_state: Ints


class TrainerPod:
    """One incarnation of a trainer: a process, and another one after it if it has a supervisor."""

    def __init__(self, cluster: Cluster, roster: TrainerRoster) -> None:
        self.cluster, self.roster = cluster, roster
        self.rank, self.incarnation = roster.index, roster.incarnation
        self.host = f"{ROLE_TRAINER}-{self.rank}-{self.incarnation}"
        self.dead = False
        self.finished = False
        self.pushes = set[int]()  # the steps that this pod has pushed in the generation
        self.trainer: Trainer | None = None
        self.process: Process | None = None
        self.resume: ResumeState | None = None
        self.file = ResumeFile.new() if cluster.workload.supervised else None
        self.begin()

    def begin(self) -> None:
        """Begin a process."""
        process = self.process = self.cluster.scheduler.process(f"process of {self.host}", self.host)
        process.at_end += [lambda _status: close_all(self.cluster.network, process), lambda _status: self._ended()]
        file = None if self.file is None else ResumeFile(self.file.descriptor)
        self.trainer = None
        self.cluster.scheduler.spawn(process, lambda: Trainer(self, file).run())

    def give(self, roster: TrainerRoster) -> None:
        if roster.counters.roster > self.roster.counters.roster:
            self.roster = roster

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

    def _ended(self) -> None:
        self.cluster.group.break_up()
        self.finished = False
        if self.dead or self.resume is None:
            self.dead = True
            return
        self.cluster.probes["a trainer restarted in its pod"] += 1
        self.begin()


class Trainer:
    """A process of a trainer."""

    def __init__(self, pod: TrainerPod, file: ResumeFile | None) -> None:
        cluster = pod.cluster
        self.pod, self.cluster, self.workload, self.rank = pod, cluster, cluster.workload, pod.rank
        self.done = NO_STATE
        self.pushed: int | None = None
        self.exchange = Exchange(
            self.workload.job,
            pod.rank,
            pod.incarnation,
            KEY,
            self.workload.job.data.samples or 0,
            file=file,
            clock=cluster.scheduler.clock,
            rng=random.Random(cluster.rng.getrandbits(64)),
        )
        self._roster = pod.roster
        self._began = cluster.scheduler.now
        self._schedule = CutSchedule(lambda _: self.workload.last_step)
        self._cut = 0
        self._named: tuple[int, ...] = ()  # the incarnations that are to commit the cut
        self._resumed = False
        self._epoch = 0
        pod.trainer = self

    @property
    def generation(self) -> int:
        return self._roster.counters.generation

    def run(self) -> None:
        resume = self.pod.resume
        if resume is not None and resume.generation == self.generation:
            self.done, self.pushed, self._resumed = resume.done, resume.pushed, True
            self.exchange.resume(self.generation, resume.pushed or 0, resume.exchange_state)
        self.exchange.follow(self._roster)
        while True:
            try:
                self._serve(self.cluster.group.epoch)
            except GroupBrokenError:
                continue
            except RolledBackError:
                self.done, self.pushed, self.pod.resume, self.pod.finished = NO_STATE, None, None, False
                self.pod.pushes.clear()
                self._schedule, self._cut = CutSchedule(lambda _: self.workload.last_step), 0

    def _serve(self, epoch: int) -> None:
        self._meet(epoch)
        self._heal()
        while True:
            if self.done < self.workload.last_step:
                if self.pushed is None or self._resumed:
                    self._await_ready()
                    self._resumed = False
                self._repair(self.pushed)
            while self.done < self.workload.last_step:
                self._step(epoch)
            self._end(epoch)

    def _meet(self, epoch: int) -> None:
        group, self._epoch = self.cluster.group, epoch
        self.poll_interrupts()
        met = f"meet in {self.generation}"
        done = group.agree(epoch, met, self.rank, self.done, self.poll_interrupts)
        if done == NO_STATE:
            self._await_ready()
            applied = max(0, *self.exchange.applied())
            done = group.agree(epoch, f"{met}: go on after", self.rank, applied, self.poll_interrupts)
        self.done = done
        self._keep(self.exchange.resume_state())
        if self.workload.job.per_step:
            self.exchange.commit(done, self._cut)

    def _heal(self) -> None:
        """Cut soon, because a new trainer keeps no earlier pushes (`trainer/save_coordinator.py`)."""
        if self.workload.job.replay.enabled and self.done > 0 and self._schedule.announced <= self.done:
            self._schedule.hasten()

    def _repair(self, pushed: int | None) -> None:
        missing = missing_steps(self.done, pushed, self.exchange.applied(), WINDOW)
        if self.workload.job.per_step:
            missing = range(self.done + 1, self.done + 1)
        for step in range(min(self.exchange.counted()) + 1, missing.start):
            self.exchange.count(step, self.workload.push(self.rank, step)[0])
        for step in range(max(self.exchange.counted()), missing.start - 1, -1):
            self.exchange.uncount(step, self.workload.push(self.rank, step)[0])
        for step in missing:
            self._fetch(step)
            self._push(step)
        self.pushed = max(self.pushed or 0, self.done)
        if self.workload.job.per_step:
            self.exchange.commit(self.done, self._cut)

    def _step(self, epoch: int) -> None:
        step, merges = self.done + 1, self.workload.job.per_step
        self._fetch(step)
        self.cluster.scheduler.sleep(self.cluster.rng.uniform(0.0, self.workload.step_s))
        if merges:
            self._push(step)
        announced = self._announce(step) if self.rank == 0 else 0
        self._cut = self.cluster.group.agree(epoch, f"step {step}", self.rank, announced, self.poll_interrupts)
        if merges:
            self._await_received(step)
        if merges:  # the sum over trainers begins once all are there, and ends on some although it fails on others
            self.cluster.group.agree(epoch, f"sum of {step}", self.rank, 0, self.poll_interrupts)
        longest = self.cluster.rng.choice((0.002, 0.002, self.workload.step_s)) if merges else 0.002
        self.cluster.scheduler.sleep(self.cluster.rng.uniform(0.0, longest))
        if self.cluster.group.epoch != epoch:
            raise GroupBrokenError
        self.done = step
        if merges:
            self._keep(self.exchange.resume_state())
            self.exchange.commit(step, self._cut)
        else:
            self._push(step)

    def _announce(self, step: int) -> int:
        """The next cut; a shard that was replaced, or gave it up, makes it void."""
        saved, full = self.exchange.saved(), self.exchange.replay_fill() >= _FULL
        self.cluster.probes["memory for pushes was nearly full"] += full
        cut = self._schedule.announced
        incarnations = tuple(peer.incarnation for peer in sorted(self._roster.shards, key=lambda peer: peer.index))
        open_now = [i for i, each in enumerate(saved) if cut and each.step < cut]
        if any(incarnations[i] != self._named[i] for i in open_now):
            self._schedule.void()
            open_now = []
        elif any(saved[i].given_up_step == cut for i in open_now):
            open_now = []
        trained_s = self.cluster.scheduler.now - self._began
        announced = self._schedule.announce(
            step, trained_s, self.workload.interval_s, uncommitted=bool(open_now), urgent=full
        )
        if announced != cut:
            self._named = incarnations
        return announced

    def _end(self, epoch: int) -> None:
        """All steps are trained: wait until their cut is in the store."""
        last = self.workload.last_step
        self._cut = last
        self.exchange.announce_cut(last)
        while True:
            self.poll_interrupts()
            if self.cluster.group.epoch != epoch:
                self.pod.finished = False
                raise GroupBrokenError
            try:
                self.exchange.settle(_SLICE_S)
            except (ShardsUnavailableError, TimeoutError):
                self.cluster.scheduler.sleep(_SLICE_S)
                continue
            if not self.exchange.unavailable():
                self._repair(pushed=None)
            self.pod.finished = (
                min(each.step for each in self.exchange.saved()) >= last and not self.exchange.unavailable()
            )
            self.cluster.scheduler.sleep(_SLICE_S)

    def _fetch(self, step: int) -> None:
        """Look up the rows of a step."""
        requested_rows = self.workload.requested_rows(self.rank, step)
        while True:
            try:
                self.cluster.checker.before_read(self)
                lookup = self.exchange.lookup(step, requested_rows)
                vectors = self._retry_until_done(partial(lookup.result, _SLICE_S))
            except ShardsUnavailableError:
                self._await_ready()
            else:
                self.cluster.checker.read(self, step, requested_rows, vectors)
                return

    def _push(self, step: int) -> None:
        rows, gradients = self.workload.push(self.rank, step)
        self.pod.pushes.add(step)
        pushed = max(step, self.pushed or 0)

        def keep(exchange_state: Ints | None) -> None:
            self.pushed, before = pushed, self.pushed
            self._keep(exchange_state)
            self.pushed = before

        while True:
            try:
                self._retry_until_done(lambda: self.exchange.push(step, rows, gradients, self._cut, _SLICE_S, keep))
            except ShardsUnavailableError:
                self._await_ready()
            else:
                self.pushed = pushed
                return

    def _await_received(self, step: int) -> None:
        while True:
            try:
                self._retry_until_done(lambda: self.exchange.wait_received(step, _SLICE_S))
            except ShardsUnavailableError:
                self._await_ready()
            else:
                return

    def _keep(self, exchange_state: Ints | None) -> None:
        if self.pod.file is not None:
            state = (self.generation, self.done, self.pushed, np.array(exchange_state))
            self.pod.resume = None if exchange_state is None else ResumeState(*state)

    def _await_ready(self) -> None:
        while True:
            self.poll_interrupts()
            try:
                self.exchange.wait_ready(_SLICE_S)
            except ShardsUnavailableError:
                continue
            return

    def _retry_until_done(self, call: Callable[[], T]) -> T:
        while True:
            try:
                return call()
            except TimeoutError:
                self.poll_interrupts()

    def poll_interrupts(self) -> None:
        """Follow the newest roster. Raises RolledBackError, and GroupBrokenError where a wait depends on the others."""
        if self.workload.job.per_step and self.cluster.group.epoch != self._epoch:
            raise GroupBrokenError
        if self.pod.roster is self._roster:
            return
        before, self._roster = self.generation, self.pod.roster
        self.exchange.follow(replace(self._roster))
        if self.generation != before:
            raise RolledBackError
