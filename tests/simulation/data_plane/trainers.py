"""A stand-in for the trainers: the real exchange, and around it the order of a step, without a dense network.

As `trainer/loop.py` and `trainer/step.py` have it: wait for all ranks, push missing steps, then look up, agree, push,
step after step, and at the end wait for the last cut. If shards merge steps, the push comes before the sum over
trainers, and a commit after it. Then a number stands for the dense state (`calm.py`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from cpr_contract.roster import TrainerRoster
from cpr_contract.spec import OPEN_TOTAL
from cpr_trainer.arrays import Ints
from cpr_trainer.embedding.memory import ResumeFile
from cpr_trainer.exchange import WINDOW, Exchange, ShardsUnavailableError
from cpr_trainer.trainer.allreduce.group import NO_STATE, missing_steps
from cpr_trainer.trainer.save_coordinator import CutSchedule
from simulation.data_plane.calm import UNKNOWN, dense_after, digest_of
from simulation.data_plane.groups import GroupBrokenError
from simulation.data_plane.known_pins import KnownData
from support.shard_job import KEY

if TYPE_CHECKING:
    from simulation.data_plane.trainer_pods import TrainerPod

T = TypeVar("T")
_SLICE_S = 0.05
#: The filled part of the memory for pushes at which a save is due (`trainer/save_coordinator.py`).
_FULL = 0.75
#: The longest waits of a trainer that ends, in seconds: for shards, without and with a job that stops, and for the last
#: cut (`trainer/loop.py`).
_REPLAY_S, _REPLAY_STOP_S, _LEAST_CUT_S = 15.0, 30.0, 15.0


class RolledBackError(Exception):
    """The newest roster is of another generation."""


class TerminatedError(Exception):
    """SIGTERM, or a roster that stops the job: save and end."""


@dataclass
class ResumeState:
    """State of a trainer's process in its supervisor, from which the next process resumes: see `trainer/resume.py`."""

    generation: int
    done: int
    dense: int
    pushed: int | None
    exchange_state: Ints


class Trainer:
    """A process of a trainer."""

    def __init__(self, pod: TrainerPod, file: ResumeFile | None) -> None:
        cluster = pod.cluster
        self.pod, self.cluster, self.workload, self.rank = pod, cluster, cluster.workload, pod.rank
        self.done, self.dense = NO_STATE, UNKNOWN
        self.pushed: int | None = None
        self.exchange = Exchange(
            self.workload.job,
            pod.rank,
            pod.incarnation,
            KEY,
            OPEN_TOTAL if cluster.arriving is not None else self.workload.job.data.samples or 0,
            file=file,
            clock=cluster.scheduler.clock,
            rng=random.Random(cluster.rng.getrandbits(64)),
        )
        self._roster = pod.roster
        self._began = cluster.scheduler.now
        self._schedule = CutSchedule(lambda _: self._last_step)
        self._cut = 0
        self._data = None if cluster.arriving is None else KnownData(self, cluster.arriving)
        self._named: tuple[int, ...] = ()  # the incarnations that are to commit the cut
        self._resumed = False
        self._epoch = 0
        pod.trainer = self

    @property
    def roster(self) -> TrainerRoster:
        return self._roster

    @property
    def generation(self) -> int:
        return self._roster.counters.generation

    def run(self) -> None:
        """Train to the end of the run; return only after SIGTERM, or once the job has stopped."""
        resume = self.pod.resume
        if resume is not None and resume.generation == self.generation:
            self.done, self.dense, self.pushed, self._resumed = resume.done, resume.dense, resume.pushed, True
            self.exchange.resume(self.generation, resume.pushed or 0, resume.exchange_state)
        self.exchange.follow(self._roster)
        while True:
            try:
                self._serve(self.cluster.group.epoch)
            except GroupBrokenError:
                continue
            except TerminatedError:
                self._flush()
                return
            except RolledBackError:
                self.done, self.pushed, self.pod.resume, self.pod.finished = NO_STATE, None, None, False
                self.dense = UNKNOWN
                self.pod.pushes.clear()
                self._schedule, self._cut = CutSchedule(lambda _: self._last_step), 0

    def _serve(self, epoch: int) -> None:
        self._meet(epoch)
        self._heal()
        while True:
            if self.done < self._last_step:
                if self.pushed is None or self._resumed:
                    self._await_ready()
                    self._resumed = False
                self._repair(self.pushed)
            while self.done < self._last_step:
                self._step(epoch)
            self._end(epoch)

    @property
    def _last_step(self) -> int:
        """The last known step."""
        return self.workload.last_step if self._data is None else self._data.followed.order.steps

    def _meet(self, epoch: int) -> None:
        group, self._epoch = self.cluster.group, epoch
        self.poll_interrupts()
        met, poll = f"meet in {self.generation}", self.poll_interrupts
        states = group.gather(epoch, met, self.rank, (self.done, self.dense), poll)
        done, dense = max(states)
        assert all(state == (done, dense) for state in states if state[0] == done), f"members differ: {states}"
        if self._data is not None:
            self._data.on_group_formed(epoch)
        if done == NO_STATE:
            done, dense = max(group.gather(epoch, f"{met}: save", self.rank, self.cluster.dense_save, poll))
            if done < self._last_step:
                self._await_ready()
                applied = max(done, *self.exchange.applied())
                reached = max(group.gather(epoch, f"{met}: go on after", self.rank, applied, poll))
                done, dense = reached, dense if reached == done else UNKNOWN
        self.done, self.dense = done, dense
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
        self._count(missing.start - 1)
        for step in range(max(self.exchange.counted()), missing.start - 1, -1):
            self.exchange.uncount(step, self.workload.push(self.rank, step)[0])
        for step in missing:
            self._fetch(step)
            self._push(step)
        self.pushed = max(self.pushed or 0, self.done)
        if self.workload.job.per_step:
            self.exchange.commit(self.done, self._cut)

    def _count(self, last: int) -> None:
        """Count the rows up to step `last` on the shards that have answered (`trainer/step.py`)."""
        counted = [step for step in self.exchange.counted() if step >= 0]
        for step in range(min(counted, default=last) + 1, last + 1):
            if self._data is not None:
                self._data.check(step)
            self.exchange.count(step, self.workload.push(self.rank, step)[0])

    def _step(self, epoch: int) -> None:
        step, merges, group = self.done + 1, self.workload.job.per_step, self.cluster.group
        if self._data is not None:
            self._data.take(step)
        read = self._fetch(step)
        self.cluster.scheduler.sleep(self.cluster.rng.uniform(0.0, self.workload.step_s))
        if merges:
            self._push(step)
        announced = self._announce(step) if self.pod.leads else 0
        what = f"step {step} of {self.generation}"  # a rollback leaves the group as it is
        self._cut = max(group.gather(epoch, what, self.rank, announced, self.poll_interrupts))
        dense = UNKNOWN
        if merges:
            self._await_received(step)
            # The sum over trainers begins once all are there, and ends on some although it fails on others.
            dense = dense_after(self.dense, group.gather(epoch, f"sum of {what}", self.rank, read, self.poll_group))
        longest = self.cluster.rng.choice((0.002, 0.002, self.workload.step_s)) if merges else 0.002
        self.cluster.scheduler.sleep(self.cluster.rng.uniform(0.0, longest))
        if group.epoch != epoch:
            raise GroupBrokenError
        self.done, self.dense = step, dense
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
        """All known steps are trained: wait until their cut is in the store, and return once there is more data."""
        last, ends = self._last_step, self._data is None or self._data.followed.order.has_ended
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
            saved = min(each.step for each in self.exchange.saved()) >= last and not self.exchange.unavailable()
            self.pod.finished = ends and saved
            if self._data is not None and not ends and self._data.grows(last, self.dense, saved=saved):
                return
            self.cluster.scheduler.sleep(_SLICE_S)

    def _flush(self) -> None:
        """After SIGTERM, or at the stop of the job: see `Loop.flush` in `trainer/loop.py`."""
        cluster, leads, settled = self.cluster, self.pod.leads, False
        cluster.group.break_up()
        with suppress(RolledBackError):
            settled = self._settle_last(cluster.scheduler.now)
        stops = self._roster.stop
        unacknowledged = any(link.pushes.unacknowledged for link in self.exchange._loop.links)
        cluster.suspension.unacknowledged |= stops and unacknowledged
        if leads and self.done == NO_STATE:
            cluster.suspension.disturbed |= stops
        elif leads and self.generation == cluster.generation:
            cluster.suspension.is_due = stops and self.done > 0
            if settled and cluster.suspension.is_due and self._last_cut():
                cluster.suspension.anchor = self.done
            if not settled:
                cluster.suspension.disturbed |= cluster.suspension.lacks_contributions(self.done)
            cluster.dense_save = self.done, self.dense

    def _settle_last(self, began: float) -> bool:
        merges = self.workload.job.per_step and self.done != NO_STATE
        if merges:
            self.exchange.withdraw(self.done)
        while True:
            stops = self._roster.stop
            if merges:
                self.exchange.commit(self.done, self._cut, for_all=self.pod.leads and stops)
            if merges and stops and self.done and min(self.exchange.counted()) < self.done:
                self.cluster.scheduler.sleep(_SLICE_S)
                self._count(self.done)
            elif self._settle_soon() and self._roster.stop is stops:
                return True
            self._follow_roster()
            if self.cluster.scheduler.now - began >= (_REPLAY_STOP_S if self._roster.stop else _REPLAY_S):
                return self._settle_soon()

    def _settle_soon(self) -> bool:
        self._follow_roster()
        try:
            self.exchange.settle(_SLICE_S)
        except ShardsUnavailableError:
            self.cluster.scheduler.sleep(_SLICE_S)
        except TimeoutError:
            pass
        else:
            return True
        return False

    def _last_cut(self) -> bool:
        """Return whether all shards have saved the present step."""
        end = self.cluster.scheduler.now + _LEAST_CUT_S
        self.exchange.announce_cut(self.done)
        while self.cluster.scheduler.now < end:
            if min(each.step for each in self.exchange.saved()) >= self.done:
                return True
            self.cluster.scheduler.sleep(_SLICE_S)
        # A shard that was out of reach until now counts as a lost one.
        self.cluster.suspension.disturbed |= bool(self.exchange.unavailable())
        return False

    def _fetch(self, step: int) -> int:
        """Look up the rows of a step; return the digest of their vectors."""
        requested_rows = self.workload.requested_rows(self.rank, step)
        while True:
            try:
                self.cluster.checker.before_read(self)
                lookup = self.exchange.lookup(step, requested_rows)
                vectors = self._retry_until_done(partial(lookup.result, _SLICE_S), self.poll_interrupts)
            except ShardsUnavailableError:
                self._await_ready()
            else:
                self.cluster.checker.read(self, step, requested_rows, vectors)
                return digest_of(vectors)

    def _push(self, step: int) -> None:
        rows, whole = self.workload.push(self.rank, step)
        gradients = tuple(rows.of_band(whole, band) for band in range(self.workload.placement.table_bands))
        self.pod.pushes.add(step)
        pushed = max(step, self.pushed or 0)

        def keep(exchange_state: Ints | None) -> None:
            self.pushed, before = pushed, self.pushed
            self._keep(exchange_state)
            self.pushed = before

        while True:
            try:
                self._retry_until_done(
                    lambda: self.exchange.push(step, rows, gradients, self._cut, _SLICE_S, keep), self.poll_group
                )
            except ShardsUnavailableError:
                self._await_ready()
            else:
                self.pushed = pushed
                return

    def _await_received(self, step: int) -> None:
        while True:
            try:
                self._retry_until_done(lambda: self.exchange.wait_received(step, _SLICE_S), self.poll_group)
            except ShardsUnavailableError:
                self._await_ready()
            else:
                return

    def _keep(self, exchange_state: Ints | None) -> None:
        if self.pod.file is not None:
            state = (self.generation, self.done, self.dense, self.pushed, np.array(exchange_state))
            self.pod.resume = None if exchange_state is None else ResumeState(*state)

    def _await_ready(self) -> None:
        while True:
            self.poll_interrupts()
            try:
                self.exchange.wait_ready(_SLICE_S)
            except ShardsUnavailableError:
                continue
            return

    @staticmethod
    def _retry_until_done(call: Callable[[], T], poll: Callable[[], None]) -> T:
        while True:
            try:
                return call()
            except TimeoutError:
                poll()

    def poll_interrupts(self) -> None:
        """Poll the group, and raise TerminatedError if this process is to stop."""
        self.poll_group()
        if self.pod.terminated or self._roster.stop:
            raise TerminatedError

    def poll_group(self) -> None:
        """Follow the newest roster. Raises RolledBackError, and GroupBrokenError where a wait depends on the others."""
        if self.workload.job.per_step and self.cluster.group.epoch != self._epoch:
            raise GroupBrokenError
        self._follow_roster()

    def _follow_roster(self) -> None:
        if self.pod.roster is self._roster:
            return
        before, self._roster = self.generation, self.pod.roster
        self.exchange.follow(replace(self._roster))
        if self.generation != before:
            raise RolledBackError
