"""Requests of the controller to the API server: caches in steady state, concurrent rosters, no repetitions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any, Self

import pytest

from cpr_operator.cluster.protocol import BusyError, ConflictError, PodPatch, Priority, UnavailableError
from cpr_operator.cluster.views import JobView, PodView
from cpr_operator.controller.controller import BUSY_RETRY_S, CONFLICT_RETRY_S, Controller
from cpr_operator.controller.job_writer import MAX_ROSTER_WRITES
from cpr_operator.reconcile import Timing
from simulation.control_plane.cluster import SimulatedCluster
from simulation.control_plane.workload import spec
from support.controller_harness import ControllerHarness

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
        self.patched: list[str] = []
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
        self.patched.append(patch.name)
        self.telling += 1
        self.most = max(self.most, self.telling)
        await asyncio.sleep(0)
        self.telling -= 1
        await super().patch_pod(namespace, patch)


class RunningJob(ControllerHarness):
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
        self.cluster.patched.clear()

    async def pods(self) -> tuple[PodView, ...]:
        return await self.cluster.list_pods(self.cluster.jobs["default", "job"])

    def on_pod_event(self, name: str) -> None:
        self.controller.on_pod_event("default", "job", self.cluster.pods[name].view())


@pytest.fixture
async def harness() -> RunningJob:
    made = RunningJob()
    await made.start()
    return made


async def test_training_job_is_read_from_the_cache_and_a_starting_one_is_not() -> None:
    harness = RunningJob()
    await harness.go(2)
    assert harness.cluster.cached == harness.cluster.jobs_cached == [False, False]
    await harness.start()
    harness.cluster.jobs_cached.clear()
    await harness.go(3)
    assert harness.cluster.cached == harness.cluster.jobs_cached == [True] * 3


async def test_a_pod_that_a_cache_does_not_show_is_not_lost(harness: RunningJob) -> None:
    harness.cluster.cache = tuple(pod for pod in await harness.pods() if "shard-1" not in pod.name)
    harness.cluster.cached.clear()
    await harness.go()
    assert harness.cluster.cached == [True, False]
    assert (harness.status.phase, harness.status.restarts) == ("Running", 0)


async def test_changed_pods_are_read_without_the_cache(harness: RunningJob) -> None:
    harness.cluster.cache = await harness.pods()
    await harness.go()
    harness.cluster.kill("shard", 1)
    victim = next(name for name in harness.cluster.pods if "shard-1" in name)
    await harness.go()
    assert harness.status.phase == "Running"  # its cache is outdated
    harness.on_pod_event(victim)
    await harness.go()
    assert (harness.status.phase, harness.cluster.cached[-1]) == ("Recovering", False)


async def test_an_edit_that_no_watch_has_shown_is_found_by_the_next_write(harness: RunningJob) -> None:
    harness.cluster.job_cache = harness.cluster.jobs["default", "job"]
    harness.cluster.set_spec("job", suspend=True)
    await harness.go()
    assert harness.status.phase == "Running"
    assert await harness.go(dt=20) == CONFLICT_RETRY_S
    await harness.go()
    assert harness.status.phase == "Suspending"


async def test_a_loss_is_recovered_from_though_the_cache_shows_an_old_job(harness: RunningJob) -> None:
    """Another operator has replaced a shard already, which no watch has shown to this one."""
    old, before = harness.cluster.jobs["default", "job"], harness.controller
    harness.cluster.kill("shard", 1)
    harness.restart()
    await harness.go(12)
    assert (harness.status.phase, harness.status.restarts) == ("Running", 1)
    pods, harness.controller, harness.cluster.job_cache = set(harness.cluster.pods), before, old
    harness.on_pod_event(next(name for name in pods if "shard-1-2" in name))
    harness.cluster.calls.clear()
    await harness.go()
    assert harness.cluster.calls == ["write_status"]  # refused
    await harness.go(12)
    assert (harness.status.phase, harness.status.restarts, set(harness.cluster.pods)) == ("Running", 1, pods)


async def test_job_that_is_to_stop_is_not_read_from_the_cache(harness: RunningJob) -> None:
    harness.cluster.set_spec("job", suspend=True)
    await harness.go()
    assert harness.cluster.cached == [False]


async def test_regular_pass_without_capacity_is_deferred(harness: RunningJob) -> None:
    harness.cluster.full = True
    assert await harness.go() == BUSY_RETRY_S
    assert harness.cluster.cached == []
    harness.cluster.kill("shard", 1)
    harness.on_pod_event(next(name for name in harness.cluster.pods if "shard-1" in name))
    await harness.go()
    assert harness.status.phase == "Recovering"


async def test_progress_without_capacity_is_written_by_the_next_pass(harness: RunningJob) -> None:
    harness.cluster.now += 20
    write = harness.cluster.write_status

    async def full(job: JobView, status: Mapping[str, Any]) -> JobView:
        raise BusyError("full")

    harness.cluster.write_status = full
    before = harness.status
    wake = await harness.go()
    assert wake is not None
    assert wake > BUSY_RETRY_S
    assert harness.status == before
    harness.cluster.write_status = write
    await harness.go()
    assert harness.status.progress.samples > before.progress.samples


async def test_short_intervals_do_not_make_the_passes_of_a_running_job_frequent() -> None:
    harness = RunningJob(snapshots__denseIntervalSeconds=1)
    await harness.start()
    wake = await harness.go()
    assert wake is not None
    assert wake >= Timing().floor_s


async def test_another_operator_continues_as_the_one_before(harness: RunningJob) -> None:
    """Its first pass over a training job is a regular one, and recent progress is not written again."""
    await harness.go(2, dt=20)
    written = harness.status
    harness.cluster.cached.clear()
    harness.cluster.calls.clear()
    harness.restart()
    harness.controller.on_running("default", "job")
    await harness.go()
    assert (harness.cluster.cached, harness.cluster.calls, harness.status) == ([True], [], written)
    await harness.go(dt=20)
    assert "write_status" in harness.cluster.calls
    harness.restart()
    harness.controller.on_running("default", "job")
    harness.cluster.kill("shard", 1)
    await harness.go(2)
    assert harness.status.phase == "Recovering", "the first look finds a lost pod"


async def test_second_passes_over_many_jobs_are_spread(harness: RunningJob) -> None:
    harness.controller = Controller(
        harness.cluster, lambda: harness.cluster.now, timing=Timing(progress_s=15.0), rng=random.Random(1)
    )
    for name in ("job", *(f"other-{index}" for index in range(999))):
        harness.controller.on_running("default", name)
    first, second = await harness.go(), await harness.go()
    assert first is not None
    assert 5.0 < first < 39.0
    assert second == 40.0


async def test_several_rosters_are_written_at_once_and_trainers_come_first() -> None:
    harness = RunningJob(trainers__replicas=20)
    await harness.start()
    harness.cluster.most = 0
    harness.cluster.kill("shard", 1)
    harness.on_pod_event(next(name for name in harness.cluster.pods if "shard-1" in name))
    await harness.go(6)
    trainers = [f"job-12345-trainer-{index}-1" for index in range(20)]
    assert harness.cluster.patched[:20] == trainers
    assert harness.cluster.most == MAX_ROSTER_WRITES


async def test_rosters_end_with_the_error_of_one_of_them_and_are_written_by_the_next_pass(harness: RunningJob) -> None:
    harness.cluster.kill("shard", 1)
    change = harness.cluster.patch_pod

    async def fail(namespace: str, patch: PodPatch) -> None:
        raise UnavailableError("try again")

    harness.cluster.patch_pod = fail
    harness.on_pod_event(next(name for name in harness.cluster.pods if "shard-1" in name))
    with pytest.raises(UnavailableError):
        await harness.go(6)
    harness.cluster.patch_pod = change
    await harness.go(12)
    assert harness.status.phase == "Running"
    versions = {pod.roster_version for pod in await harness.pods() if pod.role == "trainer"}
    assert versions == {harness.status.trainers[0].roster}
