"""What the controller asks of the API server: caches where they do no harm, several rosters at once, nothing twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any, Self

import pytest

from cpr_operator.cluster.protocol import BusyError, ConflictError, PodPatch, Priority, UnavailableError
from cpr_operator.cluster.views import JobView, PodView
from cpr_operator.controller import Controller
from cpr_operator.controller.controller import BUSY_RETRY_S, CONFLICT_RETRY_S
from cpr_operator.controller.writer import MAX_ROSTER_WRITES
from cpr_operator.reconcile import Timing
from simulation.control_plane.cluster import SimulatedCluster
from simulation.control_plane.workload import spec
from support.house import House

ENDLESS = 1 << 30


class Cluster(SimulatedCluster):
    """Has a cache that shows what a test puts there, and may be full."""

    def __init__(self) -> None:
        super().__init__(ENDLESS)
        self.cache: tuple[PodView, ...] | None = None
        self.cached: list[bool] = []
        self.jobs_cached: list[bool] = []
        self.job_cache: JobView | None = None
        self.full = False
        self.told: list[str] = []
        self.telling, self.most = 0, 0

    def at(self, priority: Priority) -> Self:
        if self.full and priority is Priority.REGULAR:
            raise BusyError("full")
        return self

    async def get_job(self, namespace: str, name: str, *, cached: bool = False) -> JobView:
        self.jobs_cached.append(cached)
        return self.job_cache if cached and self.job_cache is not None else await super().get_job(namespace, name)

    async def write_status(self, job: JobView, status: Mapping[str, Any]) -> JobView:
        try:
            return await super().write_status(job, status)
        except ConflictError:
            self.job_cache = None
            raise

    async def list_pods(self, job: JobView, *, cached: bool = False) -> tuple[PodView, ...]:
        self.cached.append(cached)
        return self.cache if cached and self.cache is not None else await super().list_pods(job)

    async def patch_pod(self, namespace: str, patch: PodPatch) -> None:
        self.told.append(patch.name)
        self.telling += 1
        self.most = max(self.most, self.telling)
        await asyncio.sleep(0)
        self.telling -= 1
        await super().patch_pod(namespace, patch)


class Trains(House):
    """A job that runs, a cluster and a controller."""

    cluster: Cluster

    def __init__(self, **changes: object) -> None:
        super().__init__(spec(data__samples=ENDLESS, **changes), cluster=Cluster())
        self.restart()

    def restart(self) -> None:
        """Another process of the operator."""
        self.controller = Controller(self.cluster, lambda: self.cluster.now, timing=Timing(progress_s=15.0))

    async def start(self) -> None:
        await self.go(12)
        assert self.status.phase == "Running"
        self.cluster.cached.clear()
        self.cluster.calls.clear()
        self.cluster.told.clear()

    async def pods(self) -> tuple[PodView, ...]:
        return await self.cluster.list_pods(self.cluster.jobs["default", "job"])

    def saw(self, name: str) -> None:
        self.controller.on_pod_event("default", "job", self.cluster.pods[name].view())


@pytest.fixture
async def house() -> Trains:
    made = Trains()
    await made.start()
    return made


async def test_training_job_is_read_from_the_cache_and_a_starting_one_is_not() -> None:
    house = Trains()
    await house.go(2)
    assert house.cluster.cached == house.cluster.jobs_cached == [False, False]
    await house.start()
    house.cluster.jobs_cached.clear()
    await house.go(3)
    assert house.cluster.cached == house.cluster.jobs_cached == [True] * 3


async def test_a_pod_that_a_cache_does_not_show_is_not_lost(house: Trains) -> None:
    house.cluster.cache = tuple(pod for pod in await house.pods() if "shard-1" not in pod.name)
    house.cluster.cached.clear()
    await house.go()
    assert house.cluster.cached == [True, False]
    assert (house.status.phase, house.status.restarts) == ("Running", 0)


async def test_changed_pods_are_read_without_the_cache(house: Trains) -> None:
    house.cluster.cache = await house.pods()
    await house.go()
    house.cluster.kill("shard", 1)
    victim = next(name for name in house.cluster.pods if "shard-1" in name)
    await house.go()
    assert house.status.phase == "Running"  # its cache is behind, and nobody said so
    house.saw(victim)
    await house.go()
    assert (house.status.phase, house.cluster.cached[-1]) == ("Recovering", False)


async def test_an_edit_that_no_watch_has_shown_is_found_by_the_next_write(house: Trains) -> None:
    house.cluster.job_cache = house.cluster.jobs["default", "job"]
    house.cluster.set_spec("job", suspend=True)
    await house.go()
    assert house.status.phase == "Running"
    assert await house.go(dt=20) == CONFLICT_RETRY_S
    await house.go()
    assert house.status.phase == "Suspending"


async def test_a_loss_is_recovered_from_though_the_cache_shows_an_old_job(house: Trains) -> None:
    """Another operator has replaced a shard already, which no watch has shown to this one."""
    old, before = house.cluster.jobs["default", "job"], house.controller
    house.cluster.kill("shard", 1)
    house.restart()
    await house.go(12)
    assert (house.status.phase, house.status.restarts) == ("Running", 1)
    pods, house.controller, house.cluster.job_cache = set(house.cluster.pods), before, old
    house.saw(next(name for name in pods if "shard-1-2" in name))
    house.cluster.calls.clear()
    await house.go()
    assert house.cluster.calls == ["write_status"]  # refused
    await house.go(12)
    assert (house.status.phase, house.status.restarts, set(house.cluster.pods)) == ("Running", 1, pods)


async def test_job_that_is_to_stop_is_not_read_from_the_cache(house: Trains) -> None:
    house.cluster.set_spec("job", suspend=True)
    await house.go()
    assert house.cluster.cached == [False]


async def test_regular_pass_without_capacity_is_deferred(house: Trains) -> None:
    house.cluster.full = True
    assert await house.go() == BUSY_RETRY_S
    assert house.cluster.cached == []
    house.cluster.kill("shard", 1)
    house.saw(next(name for name in house.cluster.pods if "shard-1" in name))
    await house.go()
    assert house.status.phase == "Recovering"


async def test_progress_without_capacity_is_written_by_the_next_pass(house: Trains) -> None:
    house.cluster.now += 20
    write = house.cluster.write_status

    async def full(job: JobView, status: Mapping[str, Any]) -> JobView:
        raise BusyError("full")

    house.cluster.write_status = full
    before = house.status
    wake = await house.go()
    assert wake is not None
    assert wake > BUSY_RETRY_S
    assert house.status == before
    house.cluster.write_status = write
    await house.go()
    assert house.status.progress.samples > before.progress.samples


async def test_short_intervals_do_not_make_the_passes_of_a_running_job_frequent() -> None:
    house = Trains(snapshots__denseIntervalSeconds=1)
    await house.start()
    wake = await house.go()
    assert wake is not None
    assert wake >= Timing().floor_s


async def test_another_operator_continues_as_the_one_before(house: Trains) -> None:
    """Its first look at a job that trains is a regular one, and figures that were written lately are not again."""
    await house.go(2, dt=20)
    written = house.status
    house.cluster.cached.clear()
    house.cluster.calls.clear()
    house.restart()
    house.controller.on_running("default", "job")
    await house.go()
    assert (house.cluster.cached, house.cluster.calls, house.status) == ([True], [], written)
    await house.go(dt=20)
    assert "write_status" in house.cluster.calls
    house.restart()
    house.controller.on_running("default", "job")
    house.cluster.kill("shard", 1)
    await house.go(2)
    assert house.status.phase == "Recovering", "the first look finds a lost pod"


async def test_second_passes_over_many_jobs_are_spread(house: Trains) -> None:
    house.controller = Controller(
        house.cluster, lambda: house.cluster.now, timing=Timing(progress_s=15.0), rng=random.Random(1)
    )
    for name in ("job", *(f"other-{index}" for index in range(999))):
        house.controller.on_running("default", name)
    first, second = await house.go(), await house.go()
    assert first is not None
    assert 5.0 < first < 39.0
    assert second == 40.0


async def test_several_rosters_are_written_at_once_and_trainers_come_first() -> None:
    house = Trains(trainers__replicas=20)
    await house.start()
    house.cluster.most = 0
    house.cluster.kill("shard", 1)
    house.saw(next(name for name in house.cluster.pods if "shard-1" in name))
    await house.go(6)
    trainers = [f"job-12345-trainer-{index}-1" for index in range(20)]
    assert house.cluster.told[:20] == trainers
    assert house.cluster.most == MAX_ROSTER_WRITES


async def test_rosters_end_with_the_error_of_one_of_them_and_are_written_by_the_next_pass(house: Trains) -> None:
    house.cluster.kill("shard", 1)
    change = house.cluster.patch_pod

    async def fail(namespace: str, patch: PodPatch) -> None:
        raise UnavailableError("try again")

    house.cluster.patch_pod = fail
    house.saw(next(name for name in house.cluster.pods if "shard-1" in name))
    with pytest.raises(UnavailableError):
        await house.go(6)
    house.cluster.patch_pod = change
    await house.go(12)
    assert house.status.phase == "Running"
    versions = {pod.roster_version for pod in await house.pods() if pod.role == "trainer"}
    assert versions == {house.status.trainers[0].roster}
