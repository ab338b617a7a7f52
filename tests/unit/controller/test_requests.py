"""What the controller asks of the API server: caches where they do no harm, several rosters at once, nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Self

import pytest

from cpr_operator.api.status import Status
from cpr_operator.cluster.protocol import BusyError, Priority, UnavailableError
from cpr_operator.cluster.views import JobView, PodView
from cpr_operator.controller import BUSY_S, ROSTERS_AT_ONCE, Controller
from cpr_operator.reconcile import Timing
from support.driver import spec
from support.fake_cluster import FakeCluster

ENDLESS = 1 << 30


class Cluster(FakeCluster):
    """Has a cache that shows what a test puts there, and may be full."""

    def __init__(self) -> None:
        super().__init__(ENDLESS)
        self.cache: tuple[PodView, ...] | None = None
        self.cached: list[bool] = []
        self.full = False
        self.told: list[str] = []
        self.telling, self.most = 0, 0

    def at(self, priority: Priority) -> Self:
        if self.full and priority is Priority.REGULAR:
            raise BusyError("full")
        return self

    async def list_pods(self, job: JobView, *, cached: bool = False) -> tuple[PodView, ...]:
        self.cached.append(cached)
        return self.cache if cached and self.cache is not None else await super().list_pods(job)

    async def annotate_pod(self, namespace: str, name: str, uid: str, annotations: Mapping[str, str]) -> None:
        self.told.append(name)
        self.telling += 1
        self.most = max(self.most, self.telling)
        await asyncio.sleep(0)
        self.telling -= 1
        await super().annotate_pod(namespace, name, uid, annotations)


class House:
    """A job that runs, a cluster and a controller."""

    def __init__(self, **changes: object) -> None:
        self.cluster = Cluster()
        self.cluster.add_job("job", spec(data__samples=ENDLESS, **changes))
        self.controller = Controller(self.cluster, lambda: self.cluster.now, timing=Timing(progress_s=15.0))

    async def go(self, passes: int = 1, dt: float = 0.25) -> float | None:
        wake = None
        for _ in range(passes):
            self.cluster.tick(dt)
            wake = await self.controller.run_pass("default", "job")
        return wake

    async def start(self) -> None:
        await self.go(12)
        assert self.status.phase == "Running"
        self.cluster.cached.clear()
        self.cluster.calls.clear()
        self.cluster.told.clear()

    @property
    def status(self) -> Status:
        return Status.model_validate(self.cluster.jobs["default", "job"].status)

    async def pods(self) -> tuple[PodView, ...]:
        return await self.cluster.list_pods(self.cluster.jobs["default", "job"])

    def saw(self, name: str) -> None:
        self.controller.saw("default", "job", self.cluster.pods[name].view())


@pytest.fixture
async def house() -> House:
    made = House()
    await made.start()
    return made


async def test_a_job_that_trains_is_looked_at_in_the_cache_and_one_that_starts_is_not() -> None:
    house = House()
    await house.go(2)
    assert house.cluster.cached == [False, False]
    await house.start()
    await house.go(3)
    assert house.cluster.cached == [True] * 3


async def test_a_pod_that_a_cache_does_not_show_is_not_lost(house: House) -> None:
    house.cluster.cache = tuple(pod for pod in await house.pods() if "shard-1" not in pod.name)
    house.cluster.cached.clear()
    await house.go()
    assert house.cluster.cached == [True, False]
    assert (house.status.phase, house.status.restarts) == ("Running", 0)


async def test_what_a_watch_saw_is_read_as_it_is(house: House) -> None:
    house.cluster.cache = await house.pods()
    await house.go()
    house.cluster.kill("shard", 1)
    victim = next(name for name in house.cluster.pods if "shard-1" in name)
    await house.go()
    assert house.status.phase == "Running"  # its cache is behind, and nobody said so
    house.saw(victim)
    await house.go()
    assert (house.status.phase, house.cluster.cached[-1]) == ("Recovering", False)


async def test_a_job_that_is_to_stop_is_not_looked_at_in_the_cache(house: House) -> None:
    house.cluster.set_spec("job", suspend=True)
    await house.go()
    assert house.cluster.cached == [False]


async def test_a_regular_pass_for_which_there_is_no_room_is_put_off(house: House) -> None:
    house.cluster.full = True
    assert await house.go() == BUSY_S
    assert house.cluster.cached == []
    house.cluster.kill("shard", 1)
    house.saw(next(name for name in house.cluster.pods if "shard-1" in name))
    await house.go()
    assert house.status.phase == "Recovering"


async def test_figures_for_which_there_is_no_room_are_written_with_the_next_pass(house: House) -> None:
    house.cluster.now += 20
    write = house.cluster.write_status

    async def full(job: JobView, status: Mapping[str, Any]) -> JobView:
        raise BusyError("full")

    house.cluster.write_status = full
    before = house.status
    wake = await house.go()
    assert wake is not None
    assert wake > BUSY_S
    assert house.status == before
    house.cluster.write_status = write
    await house.go()
    assert house.status.progress.samples > before.progress.samples


async def test_short_intervals_do_not_make_the_passes_of_a_running_job_frequent() -> None:
    house = House(snapshots__denseIntervalSeconds=1)
    await house.start()
    wake = await house.go()
    assert wake is not None
    assert wake >= Timing().floor_s


async def test_a_status_is_known_as_ones_own_until_somebody_else_writes(house: House) -> None:
    def version() -> str:
        return house.cluster.jobs["default", "job"].resource_version

    assert house.controller.wrote("default", "job", version())
    assert not house.controller.wrote("default", "another", version())
    house.cluster.set_spec("job", restarts=1)
    assert not house.controller.wrote("default", "job", version())


async def test_several_rosters_are_written_at_once_and_trainers_come_first() -> None:
    house = House(trainers__replicas=20)
    await house.start()
    house.cluster.most = 0
    house.cluster.kill("shard", 1)
    house.saw(next(name for name in house.cluster.pods if "shard-1" in name))
    await house.go(6)
    trainers = [f"job-12345-trainer-{index}-1" for index in range(20)]
    assert house.cluster.told[:20] == trainers
    assert house.cluster.most == ROSTERS_AT_ONCE


async def test_rosters_end_with_the_error_of_one_of_them_and_are_written_by_the_next_pass(house: House) -> None:
    house.cluster.kill("shard", 1)
    annotate = house.cluster.annotate_pod

    async def fail(namespace: str, name: str, uid: str, annotations: Mapping[str, str]) -> None:
        raise UnavailableError("try again")

    house.cluster.annotate_pod = fail
    house.saw(next(name for name in house.cluster.pods if "shard-1" in name))
    with pytest.raises(UnavailableError):
        await house.go(6)
    house.cluster.annotate_pod = annotate
    await house.go(12)
    assert house.status.phase == "Running"
    versions = {pod.roster_version for pod in await house.pods() if pod.role == "trainer"}
    assert versions == {house.status.trainers[0].roster}
