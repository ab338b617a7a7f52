"""A stand-in for the operator: it replaces lost members as `operator/cpr_operator/recovery` decides, and sends rosters.

It has no budget: updates that no copy holds are lost, and the shard reports them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from cpr_contract import CONTRACT_VERSION
from cpr_contract.reports import ExitCode, ShardState
from cpr_contract.roster import AnchorRef, Counters, ShardRoster, TrainerRoster
from cpr_trainer.exchange import SaveState
from cpr_trainer.parity.coding import Ring
from simulation.data_plane.pods import ShardPod
from simulation.data_plane.trainer_pods import TrainerPod
from support.parity_ring import needed

if TYPE_CHECKING:
    from simulation.data_plane.cluster import Cluster

_POLL_S = 0.05


class OperatorStub:
    """Looks at all pods many times a second, and acts a little later."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._delay_s = cluster.rng.choice((0.05, 0.3, 2.0))  # a roster takes so long at most
        self._roster = 0
        self._group = 1
        self.generation = 1
        self.leader = 0
        self._anchor: AnchorRef | None = None
        self._floors = [0] * cluster.workload.job.shards
        self._saved = [0] * cluster.workload.job.shards  # the samples of the newest save that a shard reported
        self._waiting: set[ShardPod | TrainerPod] = set()
        self._lowered_floors = set[int]()  # shards that asked parity for their floor, and did not get that

    def start(self) -> None:
        """Create all pods."""
        cluster, job = self._cluster, self._cluster.workload.job
        self._roster += 1
        cluster.newest = [ShardPod(cluster, self._shard_roster(index, 1)) for index in range(job.shards)]
        cluster.pods += cluster.newest
        cluster.trainers = [TrainerPod(cluster, self._trainer_roster(rank, 1)) for rank in range(job.trainers)]
        self.publish_rosters()
        self._poll()

    def publish_rosters(self) -> None:
        """Give all living pods a newer roster, each at its time."""
        cluster = self._cluster
        self._roster += 1
        for pod in cluster.pods:
            roster = self._shard_roster(pod.index, pod.incarnation)
            if pod.code is None and not pod.lost:
                self._deliver(pod, roster)
        for trainer in cluster.trainers:
            self._deliver(trainer, self._trainer_roster(trainer.rank, trainer.incarnation))

    def roll_back(self) -> None:
        """Let all go back to an anchor, or begin again if there is none, in a new generation."""
        self.generation += 1
        self._floors = [0] * len(self._floors)
        self._saved = [0] * len(self._saved)
        self._anchor = self._cluster.anchors.go_back()
        self.publish_rosters()

    def resume(self) -> None:
        """Give a stopped job new members, with the saves of those before them."""
        cluster = self._cluster
        for pod in cluster.newest:
            saved = self._saved[pod.index]
            self._floors[pod.index] = saved if pod.flushed is None else pod.flushed.samples
        self._group += 1
        self._roster += 1
        self._waiting.clear()
        numbers = [pod.incarnation + 1 for pod in cluster.newest]
        shards = [ShardPod(cluster, self._shard_roster(i, number, number)) for i, number in enumerate(numbers)]
        cluster.newest[:] = shards
        cluster.pods += shards
        for rank, trainer in enumerate(tuple(cluster.trainers)):
            cluster.trainers[rank] = TrainerPod(cluster, self._trainer_roster(rank, trainer.incarnation + 1))
        self.publish_rosters()

    def replace_live(self, pod: ShardPod) -> None:
        """Replace a running pod."""
        self._act_later(pod, lambda: self._replace_shard(pod.index, pod))

    def successor_of(self, roster: ShardRoster) -> ShardRoster:
        """The roster of the incarnation after this one."""
        number = roster.incarnation + 1
        return replace(self._shard_roster(roster.index, number), incarnation=number, newest_incarnation=number)

    def _deliver(self, pod: ShardPod | TrainerPod, roster: ShardRoster | TrainerRoster) -> None:
        cluster = self._cluster
        free = cluster.network.arrival("operator", pod.host)
        cluster.scheduler.at(free + cluster.rng.uniform(0.0, self._delay_s), lambda: pod.give(roster))  # type: ignore[arg-type]

    def _poll(self) -> None:
        cluster = self._cluster
        if cluster.suspension.stops_trainers:
            cluster.suspension.poll()
            cluster.scheduler.after(_POLL_S, self._poll)
            return
        changed = False
        for index, pod in enumerate(cluster.newest):
            report = pod.report if cluster.network.reaches(pod.host, "operator") else None
            if pod.code is not None or self._is_unresponsive(pod):
                self._act_later(pod, partial(self._replace_shard, index, pod))
            elif report is not None and report.counters.generation == self.generation:
                offer = report.newest_save.samples if report.newest_save is not None else 0
                if report.state is ShardState.BELOW_FLOOR and offer < self._floors[index]:
                    cluster.probes["a shard was below its floor"] += 1
                    self._floors[index] = self._saved[index] = offer
                    self._lowered_floors.add(index)
                    changed = True
                elif report.state is ShardState.READY:
                    self._lowered_floors.discard(index)
                    self._saved[index] = max(self._saved[index], offer)
        for trainer in cluster.trainers:
            if trainer.dead:
                self._act_later(trainer, partial(self._replace_trainer, trainer))
        if changed:
            self.publish_rosters()
        cluster.scheduler.after(_POLL_S, self._poll)

    def _is_unresponsive(self, pod: ShardPod) -> bool:
        """Return whether trainers live, and all of them report a shard as silent."""
        job = self._cluster.workload.job
        living = [each.trainer for each in self._cluster.trainers if each.trainer is not None and not each.dead]
        unresponsive = [pod.index in trainer.exchange.unresponsive(job.silence_s) for trainer in living]
        follows = [trainer.exchange._loop.links[pod.index : pod.index + 1] for trainer in living]
        current = all(link and link[0].peer.incarnation == pod.incarnation for link in follows)
        return bool(unresponsive) and all(unresponsive) and current

    def _act_later(self, pod: ShardPod | TrainerPod, action: Callable[[], None]) -> None:
        if pod not in self._waiting:
            self._waiting.add(pod)
            self._cluster.scheduler.after(self._cluster.rng.choice((0.05, 0.3, 1.0)), action)

    def _replace_shard(self, index: int, pod: ShardPod) -> None:
        cluster = self._cluster
        if cluster.newest[index] is not pod or cluster.suspension.stops_trainers:
            self._waiting.discard(pod)
            return
        self._floors[index] = self._floor_of(index, pod)
        if pod.code is None:
            cluster.probes["an incarnation outlived its replacement"] += 1
        self._roster += 1
        number = pod.incarnation + 1
        cluster.probes["a shard was replaced"] += 1
        cluster.newest[index] = ShardPod(cluster, self._shard_roster(index, number, number))
        cluster.pods.append(cluster.newest[index])
        self.publish_rosters()

    def _floor_of(self, index: int, pod: ShardPod) -> int:
        """The state that the successor must have at least (`operator/cpr_operator/reconcile/recover.py`)."""
        cluster, job = self._cluster, self._cluster.workload.job
        if pod.code == ExitCode.FLUSHED and pod.flushed is not None:
            cluster.probes["a shard was drained"] += 1
            return pod.flushed.samples
        saved = self._saved[index]
        if not job.replay.enabled:
            return saved
        lost = {each.index for each in cluster.newest if each.code is not None or each.report is None}
        lost |= {each.index for each in cluster.newest if each.report and each.report.state is not ShardState.READY}
        lost |= {index}
        k = job.parity_shards
        in_parity = k > 0 and index not in self._lowered_floors and needed(Ring(job.shards, k), index).isdisjoint(lost)
        for each in cluster.trainers:
            if each.trainer is None or each.dead:
                continue
            if not (links := each.trainer.exchange._loop.links):
                continue
            reported: SaveState = each.trainer.exchange.saved()[index]
            if reported.incarnation == pod.incarnation:
                saved = max(saved, reported.samples)
            if in_parity and links[index].peer.incarnation == pod.incarnation:
                saved = max(saved, each.trainer.exchange.protected()[index])
        return max(saved, 0)

    def _replace_trainer(self, pod: TrainerPod) -> None:
        cluster = self._cluster
        if cluster.trainers[pod.rank] is not pod or cluster.suspension.stops_trainers:
            self._waiting.discard(pod)
            return
        self._roster += 1
        self._group += 1
        survivors = [each.rank for each in cluster.trainers if not each.dead]
        self.leader = self.leader if self.leader in survivors or not survivors else min(survivors)
        cluster.probes["a trainer was replaced"] += 1
        cluster.trainers[pod.rank] = TrainerPod(cluster, self._trainer_roster(pod.rank, pod.incarnation + 1))
        self.publish_rosters()

    @property
    def _counters(self) -> Counters:
        return Counters(self._roster, self._group, self.generation)

    def _shard_roster(self, index: int, incarnation: int, newest: int | None = None) -> ShardRoster:
        cluster = self._cluster
        peers = tuple(pod.peer for pod in cluster.newest) if cluster.workload.job.parity_shards else ()
        if newest is None:
            newest = cluster.newest[index].incarnation if cluster.newest else 1
        return ShardRoster(
            contract=CONTRACT_VERSION,
            counters=self._counters,
            index=index,
            incarnation=incarnation,
            newest_incarnation=newest,
            may_restore=True,
            stop=cluster.suspension.stops_shards,
            floor_samples=self._floors[index],
            anchor=self._anchor,
            trainers=cluster.workload.job.trainers,
            priority_interval_s=cluster.workload.priority_interval_s,
            shards=peers,
        )

    def _trainer_roster(self, rank: int, incarnation: int) -> TrainerRoster:
        cluster = self._cluster
        return TrainerRoster(
            contract=CONTRACT_VERSION,
            counters=self._counters,
            index=rank,
            incarnation=incarnation,
            newest_incarnation=incarnation,
            leader=self.leader,
            stop=cluster.suspension.stops_trainers,
            trainers=(),
            shards=tuple(pod.peer for pod in cluster.newest),
            anchor=self._anchor,
            dense_floor_samples=0,
            interval_s=cluster.workload.interval_s,
        )
