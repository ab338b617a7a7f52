"""How long a pass waits for pods that do not answer, and how soon members that are cut off are replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from cpr_operator.api.status import Status
from cpr_operator.cluster.views import PodView
from cpr_operator.controller import REPORT_DEADLINE_S, SILENT_DEADLINE_S, Controller
from cpr_operator.reconcile import Timing
from support.driver import spec
from support.fake_cluster import FakeCluster
from support.virtual_time import now, run

ENDLESS = 1 << 30
#: The default of `failurePolicy.silenceSeconds`.
SILENCE_S = 10.0
#: How long a pod takes to answer, and how often the processes move on.
ANSWER_S, TICK_S = 0.01, 0.05
#: When a pod of a trainer that waits is no longer ready, at the latest.
UNREADY_S = 7.0


class Cluster(FakeCluster):
    """Pods take their time to answer, and those that are cut off keep whoever asks them waiting."""

    def __init__(self) -> None:
        super().__init__(ENDLESS)
        self.answers_s: dict[str, float] = {}
        self.asked: list[str] = []

    def cut_off(self, role: str, index: int) -> None:
        self.stop(role, index)
        self.answers_s[self.member(role, index).name] = float("inf")

    async def fetch_report(self, pod: PodView, deadline_s: float) -> bytes | None:
        self.asked.append(f"{pod.role}/{pod.index}")
        answer_s = self.answers_s.get(pod.name, ANSWER_S)
        await asyncio.sleep(min(answer_s, deadline_s))
        return await super().fetch_report(pod, deadline_s) if answer_s <= deadline_s else None


class House:
    """A job that trains with three trainers and three shards; its passes take time."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        document = spec(data__samples=ENDLESS, trainers__replicas=3, failurePolicy__silenceSeconds=int(SILENCE_S))
        self.cluster.add_job("job", document)
        self.controller = Controller(self.cluster, lambda: self.cluster.now)

    async def go(self) -> float:
        """A pass; returns after how many seconds the next one is due."""
        wake_s = await self.controller.run_pass("default", "job")
        assert wake_s is not None
        return wake_s

    async def train(self) -> None:
        while self.status.phase != "Running":
            await self.go()
            await asyncio.sleep(1.0)
        self.cluster.asked.clear()

    async def replace(self) -> None:
        """Passes as they ask for each other, until something is replaced."""
        created = len(self.cluster.history)
        wake_s = 0.0
        while len(self.cluster.history) == created:
            await asyncio.sleep(wake_s)
            wake_s = await self.go()

    @property
    def status(self) -> Status:
        return Status.model_validate(self.cluster.jobs["default", "job"].status)


def in_training(story: Callable[[House], Awaitable[None]]) -> None:
    """Tell a story of a job that trains."""

    async def move(cluster: Cluster) -> None:
        while True:
            cluster.tick(TICK_S)
            await asyncio.sleep(TICK_S)

    async def main() -> None:
        house = House()
        moving = asyncio.create_task(move(house.cluster))
        await house.train()
        await story(house)
        moving.cancel()
        with suppress(asyncio.CancelledError):
            await moving

    run(main())


@pytest.mark.parametrize(
    ("members", "seconds"),
    [
        pytest.param((("shard", 1),), SILENT_DEADLINE_S, id="the leader tells"),
        pytest.param((("shard", 1), ("trainer", 2)), SILENT_DEADLINE_S, id="a whole node"),
        # A pass that began before anybody was silent waits for the leader in full.
        pytest.param((("trainer", 0),), REPORT_DEADLINE_S + SILENT_DEADLINE_S, id="the leader"),
        pytest.param((("shard", 1), ("trainer", 0)), REPORT_DEADLINE_S + SILENT_DEADLINE_S, id="the leader's node"),
    ],
)
@pytest.mark.parametrize("looked_after_s", [UNREADY_S + part / 10 for part in range(-20, 1, 5)])
def test_what_is_cut_off_is_replaced_soon_after_it_is_called_silent(
    members: tuple[tuple[str, int], ...], seconds: float, looked_after_s: float
) -> None:
    async def story(house: House) -> None:
        for member in members:
            house.cluster.cut_off(*member)
        begun = now()
        await asyncio.sleep(looked_after_s)
        await house.replace()
        assert now() - begun >= SILENCE_S
        next_look_s = Timing().changing_s / 2
        assert now() - begun < SILENCE_S + next_look_s + seconds + 4 * TICK_S

    in_training(story)


def test_a_pod_that_nobody_calls_silent_is_waited_for() -> None:
    async def story(house: House) -> None:
        house.cluster.answers_s[house.cluster.member("trainer", 0).name] = REPORT_DEADLINE_S - ANSWER_S
        await house.go()
        assert house.cluster.asked == ["trainer/0"]

    in_training(story)


def test_a_leader_that_does_not_answer_is_waited_for_only_once() -> None:
    async def story(house: House) -> None:
        house.cluster.cut_off("trainer", 0)
        house.cluster.cut_off("shard", 1)
        took = []
        for _ in range(2):
            begun = now()
            await house.go()
            took.append(round(now() - begun, 1))
        assert took == [2 * REPORT_DEADLINE_S, REPORT_DEADLINE_S]

    in_training(story)
