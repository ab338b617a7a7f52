"""Waits of a pass for pods that do not answer, and replacements of members that are cut off."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from cpr_contract import env
from cpr_contract.spec import OVERDUE_S
from cpr_operator.cluster.certificates import PodTLS
from cpr_operator.cluster.pod_reports import CONNECT_S, CONNECT_TRIES
from cpr_operator.cluster.protocol import Manifest
from cpr_operator.cluster.views import PodView
from cpr_operator.controller.controller import Controller
from cpr_operator.controller.job_reader import REPORT_DEADLINE_S, UNRESPONSIVE_DEADLINE_S
from cpr_operator.reconcile import Timing
from simulation.control_plane.clock import now, run
from simulation.control_plane.cluster import SimulatedCluster
from simulation.control_plane.workload import spec
from support.controller_harness import ControllerHarness

Members = tuple[tuple[str, int], ...]

ENDLESS = 1 << 30
#: The default of `failurePolicy.silenceSeconds`.
SILENCE_S = 10.0
CONNECTING_S = CONNECT_S * CONNECT_TRIES
#: Seconds until a pod answers, and between two steps of the processes.
ANSWER_S, TICK_S = 0.01, 0.05
#: When a pod of a trainer that waits is no longer ready, at the latest.
UNREADY_S = 3.0
NEXT_LOOK_S = Timing().changing_s / 2


class Cluster(SimulatedCluster):
    """Pods answer after a delay, and hung ones never."""

    def __init__(self, together: Members) -> None:
        super().__init__(ENDLESS)
        self.together = together
        self.answers_s: dict[str, float] = {}
        self.polled: list[str] = []
        self.cut: set[str] = set()

    def _schedule(self, manifest: Manifest) -> str:
        """Some begin on one node, the others and all successors each on a node of its own."""
        labels = manifest["metadata"]["labels"]
        member = (labels[env.LABEL_ROLE], int(labels.get(env.LABEL_INDEX, -1)))  # spares have none
        first = labels.get(env.LABEL_INCARNATION) == "1"
        return "together" if first and member in self.together else str(manifest["metadata"]["name"])

    def hang(self, role: str, index: int) -> None:
        self.stop(role, index)
        self.answers_s[self.member(role, index).name] = float("inf")

    def cut_off(self, role: str, index: int) -> None:
        self.hang(role, index)
        self.cut.add(self.member(role, index).name)

    async def fetch_report(
        self, pod: PodView, deadline_s: float, max_bytes: int, recorded: str = "", tls: PodTLS | None = None
    ) -> bytes | None:
        self.polled.append(f"{pod.role}/{pod.index}")
        answer_s = self.answers_s.get(pod.name, ANSWER_S)
        await asyncio.sleep(min(answer_s, deadline_s))
        return await super().fetch_report(pod, deadline_s, max_bytes, recorded, tls) if answer_s <= deadline_s else None

    async def reaches(self, pod: PodView) -> bool:
        if pod.name in self.cut:
            await asyncio.sleep(CONNECTING_S)
        return pod.name not in self.cut


class Slow(ControllerHarness):
    """A job that trains with three trainers and three shards; its passes take time."""

    cluster: Cluster

    def __init__(self, together: Members, **changes: object) -> None:
        usual = {"data__samples": ENDLESS, "trainers__replicas": 3, "failurePolicy__silenceSeconds": int(SILENCE_S)}
        super().__init__(spec(**(usual | changes)), cluster=Cluster(together))
        self.controller = Controller(self.cluster, lambda: self.cluster.now)

    async def look(self) -> float:
        """A pass; returns after how many seconds the next one is due."""
        wake_s = await self.controller.run_pass("default", "job")
        assert wake_s is not None
        return wake_s

    async def train(self) -> None:
        while self.status.phase != "Running":
            await self.look()
            await asyncio.sleep(1.0)
        self.cluster.polled.clear()

    async def replace(self) -> None:
        """Run passes, each when the last one requests it, until a pod is replaced."""
        created, begun, wake_s = len(self.cluster.history), now(), 0.0
        while len(self.cluster.history) == created:
            assert now() - begun < 60.0, "nothing is replaced"
            await asyncio.sleep(wake_s)
            wake_s = await self.look()


def in_training(steps: Callable[[Slow], Awaitable[None]], together: Members = (), **changes: object) -> None:
    """Run `steps` on a training job with these members on one node; `changes` are of its spec."""

    async def move(cluster: Cluster) -> None:
        while True:
            cluster.tick(TICK_S)
            await asyncio.sleep(TICK_S)

    async def main() -> None:
        harness = Slow(together, **changes)
        moving = asyncio.create_task(move(harness.cluster))
        await harness.train()
        await steps(harness)
        moving.cancel()
        with suppress(asyncio.CancelledError):
            await moving

    run(main())


LEADER = ("trainer", 0)
MEMBERS = pytest.mark.parametrize(
    "members",
    [
        pytest.param((("shard", 1),), id="the leader tells"),
        pytest.param((("shard", 1), ("trainer", 1)), id="a whole node"),
        pytest.param((LEADER,), id="the leader"),
        pytest.param((("shard", 0), LEADER), id="the leader's node"),
    ],
)
LOOKED_AFTER = pytest.mark.parametrize("looked_after_s", [UNREADY_S + part for part in (-2, -1, 0)])


@MEMBERS
@LOOKED_AFTER
def test_hung_member_is_replaced_soon_after_it_is_reported(members: Members, looked_after_s: float) -> None:
    # A pass that began before the timeouts waits for the leader in full.
    polling_s = UNRESPONSIVE_DEADLINE_S + (REPORT_DEADLINE_S if LEADER in members else 0.0)

    async def steps(harness: Slow) -> None:
        for member in members:
            harness.cluster.hang(*member)
        begun = now()
        await asyncio.sleep(looked_after_s)
        await harness.replace()
        assert now() - begun >= SILENCE_S
        assert now() - begun < SILENCE_S + NEXT_LOOK_S + polling_s + 4 * TICK_S

    in_training(steps)


@MEMBERS
@LOOKED_AFTER
def test_members_of_a_lost_node_are_replaced_soon_after_their_heartbeats_expire(
    members: Members, looked_after_s: float
) -> None:
    # A pass that began before any heartbeat was overdue waits for the leader's node in full.
    polling_s = CONNECTING_S + (REPORT_DEADLINE_S + UNRESPONSIVE_DEADLINE_S if LEADER in members else 0.0)

    async def steps(harness: Slow) -> None:
        for member in members:
            harness.cluster.cut_off(*member)
        begun = now()
        await asyncio.sleep(looked_after_s)
        await harness.replace()
        assert now() - begun >= OVERDUE_S
        assert now() - begun < OVERDUE_S + NEXT_LOOK_S + polling_s + 4 * TICK_S
        lost = [failure for failure in harness.status.failures if failure.kind == "Hung"]
        assert {(failure.role, failure.index) for failure in lost} == set(members)
        assert len({failure.time for failure in lost}) == 1, "one decision"

    in_training(steps, together=members)


@pytest.mark.parametrize("later_s", [0.1, 0.3, 0.5])
@LOOKED_AFTER
def test_lost_node_is_one_decision_although_heartbeats_expire_one_by_one(looked_after_s: float, later_s: float) -> None:
    members = (("shard", 1), ("trainer", 1))

    async def steps(harness: Slow) -> None:
        harness.cluster.cut_off(*members[0])
        await asyncio.sleep(later_s)
        harness.cluster.cut_off(*members[1])
        await asyncio.sleep(looked_after_s - later_s)
        await harness.replace()
        lost = [failure for failure in harness.status.failures if failure.kind == "Hung"]
        assert {(failure.role, failure.index) for failure in lost} == set(members)
        assert len({failure.time for failure in lost}) == 1, "one decision"

    in_training(steps, together=members)


@pytest.mark.parametrize(("trainers", "shards"), [(1, 2), (1, 3), (2, 3)])
def test_shards_without_a_surviving_witness_are_lost_with_the_trainers_of_their_node(
    trainers: int, shards: int
) -> None:
    members = (*(("trainer", rank) for rank in range(trainers)), ("shard", 1))

    async def steps(harness: Slow) -> None:
        for member in members:
            harness.cluster.cut_off(*member)
        begun = now()
        await harness.replace()
        assert now() - begun < SILENCE_S
        lost = harness.status.failures
        assert {(each.role, each.index, each.kind) for each in lost} == {(*member, "Hung") for member in members}
        assert len({each.time for each in lost}) == 1, "one decision"
        while harness.status.phase != "Running":
            await harness.look()
            await asyncio.sleep(1.0)

    in_training(steps, together=members, trainers__replicas=trainers, shards__replicas=shards)


@pytest.mark.parametrize(
    ("members", "together"),
    [
        pytest.param((("shard", 1), ("shard", 2)), (), id="on two nodes"),
        pytest.param((("trainer", 1),), (("trainer", 1), ("shard", 1)), id="beside a shard that answers"),
    ],
)
def test_members_of_other_nodes_are_replaced_only_when_unresponsive(members: Members, together: Members) -> None:
    async def steps(harness: Slow) -> None:
        for member in members:
            harness.cluster.cut_off(*member)
        begun = now()
        await asyncio.sleep(UNREADY_S)
        await harness.replace()
        assert now() - begun >= SILENCE_S

    in_training(steps, together)


def test_node_with_a_reachable_pod_is_not_lost() -> None:
    async def steps(harness: Slow) -> None:
        harness.cluster.cut_off(*LEADER)
        harness.cluster.answers_s[harness.cluster.member("shard", 1).name] = float("inf")  # its process alone is slow
        begun = now()
        while now() - begun < SILENCE_S - CONNECTING_S - REPORT_DEADLINE_S:
            await harness.look()
            await asyncio.sleep(0.5)
        assert harness.status.failures == ()

    in_training(steps, together=(LEADER, ("shard", 1)), trainers__replicas=1)


@pytest.mark.parametrize("lost", [False, True])
def test_a_spare_that_answers_late_is_waited_for_where_a_shard_is_lost(*, lost: bool) -> None:
    async def steps(harness: Slow) -> None:
        while not any(spare.state == "Ready" for spare in harness.status.spares):
            await harness.look()
            await asyncio.sleep(1.0)
        (spare,) = harness.cluster.spares()
        harness.cluster.answers_s[spare.name] = REPORT_DEADLINE_S - ANSWER_S
        if lost:
            harness.cluster.kill("shard", 1)
        begun = now()
        await harness.look()
        took_s = now() - begun
        assert took_s > UNRESPONSIVE_DEADLINE_S if lost else took_s <= UNRESPONSIVE_DEADLINE_S + ANSWER_S
        assert (harness.status.shards[1].pod == spare.name) == lost

    in_training(steps, shards__spares=1)


def test_pod_that_no_member_misses_is_waited_for() -> None:
    async def steps(harness: Slow) -> None:
        harness.cluster.answers_s[harness.cluster.member("trainer", 0).name] = REPORT_DEADLINE_S - ANSWER_S
        await harness.look()
        assert harness.cluster.polled == ["trainer/0"]

    in_training(steps)


def test_a_leader_that_does_not_answer_is_waited_for_only_once() -> None:
    async def steps(harness: Slow) -> None:
        for role, index in (("trainer", 0), ("shard", 1)):  # their peers get their heartbeats
            harness.cluster.answers_s[harness.cluster.member(role, index).name] = float("inf")
        took = []
        for _ in range(2):
            begun = now()
            await harness.look()
            took.append(round(now() - begun, 1))
        assert took == [2 * REPORT_DEADLINE_S, REPORT_DEADLINE_S]

    in_training(steps)
