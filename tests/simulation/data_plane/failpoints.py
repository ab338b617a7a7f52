"""The faults that are injected into a cluster. The seed decides which, when and where."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from simulation.data_plane.network import Socket
from simulation.data_plane.pods import ShardPod
from simulation.data_plane.probes import MOST_LINES
from simulation.data_plane.trainer_pods import TrainerPod

if TYPE_CHECKING:
    from simulation.data_plane.cluster import Cluster


class Failpoints:
    """Each method injects one fault. RECOVERABLE ones leave a copy of every push: with replay nothing may be lost."""

    RECOVERABLE = (
        "kill_server",
        *("kill_between_lines", "kill_between_lines"),
        *("kill_shard", "kill_shard"),
        "kill_two",
        "kill_all_shards",
        "kill_again",
        "kill_in_flush",
        "lose_node",
        "replace_live",
        "partition",
        *("clog", "swizzle", "reset", "half_open"),
        "pause",
        *("store_down", "store_slow", "store_forgetful"),
        "drain",
        "kill_trainer_process",
        "stop_job",
    )
    DESTRUCTIVE = (
        *("kill_trainer", "kill_in_push", "kill_in_commit", "drain_trainer", "drain_again", "stop_without_follower"),
        *("kill_in_stop", "kill_at_end", "damage", "roll_back"),
    )
    #: Beside these a lost trainer takes no copy along if shards merge steps.
    WITHOUT_SHARDS = frozenset(
        {
            *("kill_trainer", "kill_in_push", "kill_in_commit", "kill_trainer_process"),
            *("drain_trainer", "drain_again", "stop_job", "stop_without_follower", "reset", "clog"),
        }
    )

    def __init__(self, cluster: Cluster, *, recoverable: bool) -> None:
        self._cluster, self._network, self._scheduler = cluster, cluster.network, cluster.scheduler
        self._rng = random.Random(cluster.rng.getrandbits(64))
        self._kinds = cluster.workload.faults or self.RECOVERABLE + (() if recoverable else self.DESTRUCTIVE)
        self.recoverable = not set(self._kinds) & set(self.DESTRUCTIVE)
        if cluster.workload.job.per_step and self.WITHOUT_SHARDS.issuperset(self._kinds):
            self.recoverable = True
        # Each seed has its favourites, so that the same fault occurs several times.
        self._weights = [self._rng.choice((0, 1, 1, 4)) for _ in self._kinds]
        if cluster.workload.faults or not any(self._weights):
            self._weights = [1] * len(self._kinds)
        self._end = 0.0

    def inject_until(self, end: float, mean_s: float) -> None:
        """Inject a fault from time to time."""
        when, self._end = self._scheduler.now + self._rng.expovariate(1 / mean_s), end
        if when < end:
            self._scheduler.at(when, lambda: self._inject(end, mean_s))

    def heal(self) -> None:
        """End all faults that last."""
        self._network.unclog_all()
        store = self._cluster.store
        store.down_until, store.slow, store.loses = -math.inf, 0.0, 0.0
        self._cluster.armed.clear()

    def _inject(self, end: float, mean_s: float) -> None:
        (kind,) = self._rng.choices(self._kinds, self._weights)
        for _ in range(self._rng.choice((1, 1, 1, 2))):
            getattr(self, kind)()
        self.inject_until(end, mean_s)

    def _note(self, fault: str) -> None:
        self._cluster.probes[f"fault: {fault}"] += 1

    @property
    def _shards(self) -> list[ShardPod]:
        return [pod for pod in self._cluster.newest if pod.code is None]

    def _some_shard(self) -> ShardPod | None:
        return self._rng.choice(self._shards) if self._shards else None

    def _on_shard(self, fault: str, inject: Callable[[ShardPod], None]) -> None:
        if pod := self._some_shard():
            self._note(fault)
            inject(pod)

    def _in(self, *seconds: float) -> float:
        """A time from now, after one of these durations."""
        return self._scheduler.now + self._rng.choice(seconds)

    def _some_hosts(self) -> list[str]:
        hosts = [pod.host for pod in self._shards] + [each.host for each in self._trainers]
        return self._rng.sample(hosts, len(hosts))

    # --- shards

    def kill_server(self) -> None:
        self._on_shard("a server was killed", ShardPod.kill_server)

    def kill_between_lines(self) -> None:
        pod = self._some_shard()
        if pod is not None and pod.server is not None:
            self._cluster.armed[pod.server] = self._rng.randint(1, MOST_LINES)

    def kill_shard(self) -> None:
        self._on_shard("a shard's pod was killed", ShardPod.kill)

    def kill_two(self) -> None:
        self._note("two pods were killed")
        for pod in self._rng.sample(self._shards, min(2, len(self._shards))):
            pod.kill()

    def kill_all_shards(self) -> None:
        self._note("all shards' pods were killed")
        for pod in self._shards:
            pod.kill()

    def kill_again(self) -> None:
        """Kill a shard, and its successor soon after it began."""

        def inject(pod: ShardPod) -> None:
            pod.kill()
            newest = self._cluster.newest  # the successor takes its place in the list
            self._scheduler.after(self._rng.uniform(0.3, 2.5), lambda: newest[pod.index].kill())  # noqa: PLW0108

        self._on_shard("a shard was killed, and its successor", inject)

    def kill_in_flush(self) -> None:
        """Clog the path to another shard, and then kill the sender: its flushes have arrived, answers have not."""
        if len(self._shards) > 1:
            self._note("a shard was killed while the path to another was clogged")
            pod, other = self._rng.sample(self._shards, 2)
            self._network.clog(pod.host, other.host, self._scheduler.now + 2.0)
            self._scheduler.after(self._rng.uniform(0.1, 1.0), pod.kill)

    def lose_node(self) -> None:
        self._on_shard("a node was lost", ShardPod.lose)

    def replace_live(self) -> None:
        """Replace a running shard, as on a report of its node alone."""
        self._on_shard("a living shard was replaced", self._cluster.operator.replace_live)

    def pause(self) -> None:
        pod = self._some_shard()
        if pod is not None and pod.server is not None:
            self._note("a server was stopped")
            self._scheduler.pause(pod.server, self._rng.choice((0.2, 1.0, 6.0)))

    def drain(self) -> None:
        self._on_shard("a shard was drained", ShardPod.drain)

    # --- the network

    def partition(self) -> None:
        """Cut a shard off for a while: it may be replaced meanwhile."""
        self._on_shard("a shard was cut off", lambda pod: self._network.cut_off(pod.host, self._in(0.5, 2.0, 8.0)))

    def clog(self) -> None:
        self._note("a path was clogged")
        one, other, *_ = [*self._some_hosts(), "*", "*"]
        self._network.clog(one, other, self._in(0.05, 0.5, 4.0))

    def swizzle(self) -> None:
        """Clog some hosts one after the other, and free them in another order."""
        self._note("hosts were clogged and freed in another order")
        now, hosts = self._scheduler.now, self._some_hosts()
        for host in hosts[: self._rng.randint(1, len(hosts) or 1)]:
            end = now + self._rng.uniform(0.1, 1.5)
            self._scheduler.after(self._rng.uniform(0.0, 0.1), partial(self._network.cut_off, host, end))

    def _some_connection(self) -> Socket | None:
        found = self._network.connections()
        return self._rng.choice(found) if found else None

    def reset(self) -> None:
        if (socket := self._some_connection()) is not None:
            self._note("a connection was reset")
            there = socket.peer
            socket.reset()
            if there is not None:
                there.reset()

    def half_open(self) -> None:
        if (socket := self._some_connection()) is not None:
            self._note("a connection was half open")
            socket.mute = True

    # --- the store

    def store_down(self) -> None:
        self._note("the store was down")
        self._cluster.store.down_until = self._in(0.3, 2.0, 6.0)

    def store_slow(self) -> None:
        self._note("the store was slow")
        self._cluster.store.slow = self._rng.choice((0.0, 0.1, 0.5))

    def store_forgetful(self) -> None:
        self._note("answers of the store were lost")
        self._cluster.store.loses = self._rng.choice((0.0, 0.1, 0.3))

    def damage(self) -> None:
        keys = sorted(self._cluster.store.objects)
        if keys:
            self._note("an object was damaged")
            self._cluster.damaged = True
            self._cluster.store.damage(self._rng.choice(keys))

    # --- trainers, and the job

    def kill_trainer_process(self) -> None:
        """Only if a supervisor holds the resume state: otherwise the buffered pushes are lost with the process."""
        resumable = [each for each in self._cluster.trainers if each.file is not None and not each.dead and each.resume]
        if resumable:
            self._note("a trainer's process was killed")
            self._rng.choice(resumable).kill_process()

    @property
    def _trainers(self) -> list[TrainerPod]:
        return [each for each in self._cluster.trainers if not each.dead]

    def kill_trainer(self) -> None:
        if living := self._trainers:
            self._note("a trainer's pod was killed")
            self._rng.choice(living).kill()

    def drain_trainer(self) -> None:
        if living := self._trainers:
            self._note("a trainer was drained")
            self._rng.choice(living).drain()

    def drain_again(self) -> None:
        """Kill a trainer, and drain its successor soon after it began: it may have joined, and pushed nothing."""
        if living := self._trainers:
            self._note("a trainer was killed, and its successor drained")
            pod, trainers = self._rng.choice(living), self._cluster.trainers
            pod.kill()

            def drain() -> None:
                if trainers[pod.rank] is pod:
                    self._scheduler.after(0.02, drain)
                else:
                    self._scheduler.after(self._rng.uniform(0.0, 0.4), trainers[pod.rank].drain)

            drain()

    def kill_in_push(self) -> None:
        """Clog the path from a trainer to a shard, and then kill the trainer: its push has come to other shards."""
        living = self._trainers
        if living and self._shards:
            self._note("a trainer's pod was killed while its path to a shard was clogged")
            trainer, pod = self._rng.choice(living), self._rng.choice(self._shards)
            self._network.clog(trainer.host, pod.host, self._scheduler.now + 1.0)
            self._scheduler.after(self._rng.uniform(0.05, 0.9), trainer.kill)

    def kill_in_commit(self) -> None:
        """Kill a trainer that has committed a step which another one has not: its dense state is lost with it."""
        living = [(each, each.trainer.done) for each in self._trainers if each.trainer]
        last = max((done for _, done in living), default=0)
        committed = [pod for pod, done in living if done == last > 0]
        if 0 < len(committed) < self._cluster.workload.job.trainers == len(living):
            self._note("a trainer's pod was killed in a commit")
            for pod in committed:
                pod.kill()
        elif self._scheduler.now < self._end:
            self._scheduler.after(0.001, self.kill_in_commit)

    def stop_job(self) -> None:
        """Stop the job; it resumes once all members have ended."""
        self._cluster.suspension.begin()

    def stop_without_follower(self) -> None:
        """Kill a follower, and stop the job before it is replaced: the leader commits for it."""
        if followers := [each for each in self._trainers if not each.leads]:
            self._note("a follower was killed, and the job stopped")
            self._rng.choice(followers).kill()
            self._scheduler.after(self._rng.uniform(0.0, 0.05), self.stop_job)

    def kill_in_stop(self) -> None:
        """Stop the job, and kill a member or two shortly before, during or after the stop."""
        now = self._scheduler.now
        for _ in range(self._rng.choice((1, 1, 2))):
            kill = self._rng.choice((self.kill_trainer, self.kill_trainer, self.kill_shard, self.kill_server))
            self._scheduler.at(now + self._rng.uniform(0.0, 1.5), kill)
        self._scheduler.at(now + self._rng.uniform(0.2, 0.8), self.stop_job)

    def kill_at_end(self) -> None:
        """Kill a member, or stop the job, once a trainer is about to complete the last step."""
        near = self._cluster.workload.last_step - 1
        if any(each.trainer and each.trainer.done >= near for each in self._trainers):
            delay_s = self._rng.uniform(0.0, 2 * self._cluster.workload.step_s)
            fault = self._rng.choice((self.kill_trainer, self.kill_shard, self.stop_job, self.drain_trainer))
            self._note("a member was lost in the last step")
            self._scheduler.after(delay_s, fault)
        elif self._scheduler.now < self._end or self._cluster.arriving is not None:
            # Data that arrives may end long after the other faults.
            self._scheduler.after(0.02, self.kill_at_end)

    def roll_back(self) -> None:
        if not self._cluster.suspension.stops_trainers:
            self._note("the job was rolled back")
            self._cluster.operator.roll_back()
