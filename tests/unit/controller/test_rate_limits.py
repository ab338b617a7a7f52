"""Waits of a recovery while a thousand jobs share the API server, with the real controller and limiter."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Self

import pytest

from cpr_operator.api.status import Status
from cpr_operator.cluster.api_server import AT_ONCE, READS_PER_S, WRITES_PER_S
from cpr_operator.cluster.protocol import BusyError, Priority
from cpr_operator.cluster.rate_limiter import RateLimiter
from cpr_operator.controller.controller import Controller
from cpr_operator.controller.priority import PROGRESS_WRITES_PER_S, request_priority, status_pause_s
from cpr_operator.reconcile import Outcome, Timing
from simulation.control_plane.clock import now, run
from simulation.control_plane.cluster import SimulatedCluster
from simulation.control_plane.workload import spec
from support.controller_harness import ControllerHarness

#: Seconds of the API server for any request.
ANSWER_S = 0.005
#: Seconds that the others run before a shard is lost.
WATCHED_S = 120.0


class Limiters:
    """The limiters that all jobs share, and the requests: seconds, priority and kind."""

    def __init__(self) -> None:
        self.limiters = {
            "read": RateLimiter(READS_PER_S, AT_ONCE, now),
            "write": RateLimiter(WRITES_PER_S, AT_ONCE, now),
        }
        self.taken: list[tuple[float, Priority, str]] = []

    async def take(self, kind: str, priority: Priority, what: str) -> None:
        async with self.limiters[kind].slot(priority, "default"):
            self.taken.append((now(), priority, what))
            await asyncio.sleep(ANSWER_S)


class RateLimitedCluster(SimulatedCluster):
    """One job's cluster with the limits of an API server."""

    def __init__(self, limiters: Limiters, total: int = 1 << 30) -> None:
        super().__init__(total)
        self.limiters = limiters
        self.priority = Priority.BEGIN

    def at(self, priority: Priority) -> Self:
        return _At(self, priority)  # type: ignore[return-value]


class _At:
    """The cluster's methods behind the limit."""

    def __init__(self, cluster: RateLimitedCluster, priority: Priority) -> None:
        self._cluster = cluster
        self._priority = priority

    def __getattr__(self, method: str) -> Any:
        async def call(*arguments: Any, **options: Any) -> Any:
            kind = "read" if method.startswith(("get", "list")) else "write"
            await self._cluster.limiters.take(kind, self._priority, method)
            return await getattr(self._cluster, method)(*arguments, **options)

        return call


class Shared(ControllerHarness):
    """A job with 20 trainers and 3 shards under the shared limit."""

    def __init__(self, limiters: Limiters) -> None:
        super().__init__(spec(trainers__replicas=20, data__samples=1 << 30), cluster=RateLimitedCluster(limiters))
        self.controller = Controller(self.cluster, lambda: self.cluster.now, timing=Timing(progress_s=15.0))

    async def until(self, phase: str) -> None:
        for _ in range(100):
            await self.go()
            if self.status.phase == phase:
                return
        pytest.fail(f"the job is {self.status.phase}")


async def progress_of(jobs: int, limiters: Limiters) -> None:
    """Running jobs that read, and write their progress, as often as the controller allows."""
    status = Status(phase="Running", start_time=0.0)
    later = status.evolve(restarts=1)
    priority = request_priority(status, Outcome(later))
    pause = status_pause_s(status, later, priority, 15.0, jobs)

    async def job(number: int) -> None:
        await asyncio.sleep(15.0 * number / jobs)
        written = float("-inf")
        while True:
            try:
                await limiters.take("read", priority, "regular")
                if now() >= written + pause:
                    await limiters.take("write", priority, f"progress {number}")
                    written = now()
            except BusyError:  # with the next pass, then
                pass
            await asyncio.sleep(15.0)

    async with asyncio.TaskGroup() as group:
        for number in range(jobs):
            group.create_task(job(number))


def test_recovery_does_not_wait_for_progress_writes_of_other_jobs() -> None:
    jobs = 1000

    async def main() -> tuple[float, Limiters]:
        limiters = Limiters()
        harness = Shared(limiters)
        await harness.until("Running")
        others = asyncio.ensure_future(progress_of(jobs, limiters))
        await asyncio.sleep(WATCHED_S)
        harness.cluster.kill("shard", 1)
        begun, writes = now(), len(limiters.taken)
        pod = next(p.view() for p in harness.cluster.pods.values() if p.phase == "Failed")
        harness.controller.on_pod_event("default", "job", pod)
        await harness.until("Recovering")
        mine = [t for t in limiters.taken[writes:] if t[1] is not Priority.REGULAR]
        assert sum(what == "patch_pod" for *_, what in mine) == 20
        took = now() - begun
        others.cancel()
        await asyncio.gather(others, return_exceptions=True)
        return took, limiters

    took, limiters = run(main())
    assert took < 1.0
    each_s = max(15.0, jobs / PROGRESS_WRITES_PER_S)
    written = Counter(what for *_, what in limiters.taken if what.startswith("progress"))
    assert written.total() <= jobs * (1 + WATCHED_S / each_s)
    assert len(written) == jobs
    assert min(written.values()) >= WATCHED_S // (each_s + 3 * 15.0)


def test_jobs_that_are_applied_together_start_one_after_another() -> None:
    """Prerequisites of one job do not delay the pods of all others."""
    jobs, pods = 60, 5

    async def main() -> list[float]:
        limiters = Limiters()
        controllers = []
        for _ in range(jobs):
            cluster = RateLimitedCluster(limiters)
            cluster.add_job("job", spec(data__samples=1 << 30))
            controllers.append(Controller(cluster, lambda: 0.0))
        await asyncio.gather(*(each.run_pass("default", "job") for each in controllers))
        return [when for when, _, what in limiters.taken if what == "create_pod"]

    created = run(main())
    assert len(created) == jobs * pods
    halfway = sum(when < created[-1] / 2 for when in created)
    assert halfway > jobs * pods / 3
