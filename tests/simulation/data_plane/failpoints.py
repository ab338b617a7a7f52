"""The faults that strike a cluster: which, when and whom the seed decides."""

from __future__ import annotations

import math
import random
from functools import partial
from typing import TYPE_CHECKING

from simulation.data_plane.network import Socket
from simulation.data_plane.probes import MOST_LINES

if TYPE_CHECKING:
    from simulation.data_plane.cluster import Cluster
    from simulation.data_plane.pods import ShardPod


class Failpoints:
    """Strikes from a seed. `gentle` ones leave a copy of everything somewhere: with replay nothing may be lost."""

    GENTLE = (
        "kill_server",
        "kill_between_lines",
        "kill_between_lines",
        "kill_shard",
        "kill_shard",
        "kill_two",
        "kill_all_shards",
        "kill_again",
        "kill_in_flush",
        "lose_node",
        "oust",
        "part",
        "clog",
        "swizzle",
        "reset",
        "half_open",
        "freeze",
        "store_down",
        "store_slow",
        "store_forgetful",
        "drain",
        "kill_trainer_process",
    )
    HARMFUL = ("kill_trainer", "damage", "roll_back")

    def __init__(self, cluster: Cluster, *, gentle: bool) -> None:
        self._cluster = cluster
        self._rng = random.Random(cluster.rng.getrandbits(64))
        self._kinds = cluster.workload.faults or self.GENTLE + (() if gentle else self.HARMFUL)
        self.gentle = not set(self._kinds) & set(self.HARMFUL)
        # Each seed has its favourites, so that the same thing happens several times.
        self._weights = [self._rng.choice((0, 1, 1, 4)) for _ in self._kinds]
        if cluster.workload.faults or not any(self._weights):
            self._weights = [1] * len(self._kinds)

    def strike_until(self, end: float, mean_s: float) -> None:
        """Let faults strike from time to time."""
        when = self._cluster.scheduler.now + self._rng.expovariate(1 / mean_s)
        if when < end:
            self._cluster.scheduler.at(when, lambda: self._strike(end, mean_s))

    def _strike(self, end: float, mean_s: float) -> None:
        (kind,) = self._rng.choices(self._kinds, self._weights)
        for _ in range(self._rng.choice((1, 1, 1, 2))):
            getattr(self, kind)()
        self.strike_until(end, mean_s)

    def _note(self, what: str) -> None:
        self._cluster.probes[f"fault: {what}"] += 1

    @property
    def _shards(self) -> list[ShardPod]:
        return [pod for pod in self._cluster.newest if pod.code is None]

    def _some_shard(self) -> ShardPod | None:
        return self._rng.choice(self._shards) if self._shards else None

    def _some_hosts(self) -> list[str]:
        hosts = [pod.host for pod in self._shards] + [each.host for each in self._cluster.trainers if not each.dead]
        return self._rng.sample(hosts, len(hosts))

    def kill_server(self) -> None:
        if pod := self._some_shard():
            self._note("a server was killed")
            pod.kill_server()

    def kill_between_lines(self) -> None:
        pod = self._some_shard()
        if pod is not None and pod.server is not None:
            self._cluster.armed[pod.server] = self._rng.randint(1, MOST_LINES)

    def kill_shard(self) -> None:
        if pod := self._some_shard():
            self._note("a shard's pod was killed")
            pod.kill()

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
        if pod := self._some_shard():
            self._note("a shard was killed, and its successor")
            pod.kill()
            index, after = pod.index, self._rng.uniform(0.3, 2.5)
            self._cluster.scheduler.after(after, partial(self._kill_newest, index))

    def _kill_newest(self, index: int) -> None:
        self._cluster.newest[index].kill()

    def kill_in_flush(self) -> None:
        """Kill a shard some time after another one heard from it last: its flushes are there, and not here."""
        if len(self._shards) > 1:
            self._note("a shard was killed while one did not hear it")
            pod, other = self._rng.sample(self._shards, 2)
            self._cluster.network.clog(pod.host, other.host, self._cluster.scheduler.now + 2.0)
            self._cluster.scheduler.after(self._rng.uniform(0.1, 1.0), pod.kill)

    def lose_node(self) -> None:
        if pod := self._some_shard():
            self._note("a node was lost")
            pod.lose()

    def oust(self) -> None:
        """Replace a shard that lives: who says so knows it from its node alone."""
        if pod := self._some_shard():
            self._note("a living shard was replaced")
            self._cluster.operator.oust(pod)

    def part(self) -> None:
        """Cut a shard off for a while: it may be replaced meanwhile."""
        if pod := self._some_shard():
            self._note("a shard was cut off")
            self._cluster.network.cut_off(pod.host, self._cluster.scheduler.now + self._rng.choice((0.5, 2.0, 8.0)))

    def clog(self) -> None:
        self._note("a path was clogged")
        one, other, *_ = [*self._some_hosts(), "*", "*"]
        self._cluster.network.clog(one, other, self._cluster.scheduler.now + self._rng.choice((0.05, 0.5, 4.0)))

    def swizzle(self) -> None:
        """Clog some hosts one after the other; they are free again in another order."""
        self._note("hosts were clogged and freed in another order")
        now, hosts = self._cluster.scheduler.now, self._some_hosts()
        for host in hosts[: self._rng.randint(1, len(hosts) or 1)]:
            end = now + self._rng.uniform(0.1, 1.5)
            begin = self._rng.uniform(0.0, 0.1)
            self._cluster.scheduler.after(begin, partial(self._cluster.network.cut_off, host, end))

    def _some_connection(self) -> Socket | None:
        found = self._cluster.network.connections()
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

    def freeze(self) -> None:
        pod = self._some_shard()
        if pod is not None and pod.server is not None:
            self._note("a server was stopped")
            self._cluster.scheduler.freeze(pod.server, self._rng.choice((0.2, 1.0, 6.0)))

    def store_down(self) -> None:
        self._note("the store was down")
        self._cluster.store.down_until = self._cluster.scheduler.now + self._rng.choice((0.3, 2.0, 6.0))

    def store_slow(self) -> None:
        self._note("the store was slow")
        self._cluster.store.slow = self._rng.choice((0.0, 0.1, 0.5))

    def store_forgetful(self) -> None:
        self._note("answers of the store were lost")
        self._cluster.store.loses = self._rng.choice((0.0, 0.1, 0.3))

    def drain(self) -> None:
        if pod := self._some_shard():
            self._note("a shard was drained")
            pod.drain()

    def kill_trainer_process(self) -> None:
        """Where trainers have no keeper, this would take what is kept along."""
        kept = [each for each in self._cluster.trainers if each.file is not None and not each.dead and each.kept]
        if kept:
            self._note("a trainer's process was killed")
            self._rng.choice(kept).kill_process()

    def kill_trainer(self) -> None:
        living = [each for each in self._cluster.trainers if not each.dead]
        if living:
            self._note("a trainer's pod was killed")
            self._rng.choice(living).kill()

    def damage(self) -> None:
        keys = sorted(self._cluster.store.objects)
        if keys:
            self._note("an object was damaged")
            self._cluster.damaged = True
            self._cluster.store.damage(self._rng.choice(keys))

    def roll_back(self) -> None:
        self._note("the job was rolled back")
        self._cluster.operator.roll_back()

    def heal(self) -> None:
        """From now on nothing fails any more."""
        self._cluster.network.unclog_all()
        store = self._cluster.store
        store.down_until, store.slow, store.loses = -math.inf, 0.0, 0.0
        self._cluster.armed.clear()
