"""Events of the watches that lead to a pass, and those without changes."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from cpr_contract import env
from cpr_operator.cluster.views import PodView
from cpr_operator.cluster.watch_cache import WatchCache
from cpr_operator.desired.workload import QUOTA_FINALIZER
from cpr_operator.handlers import make_registry, watch_workloads
from cpr_operator.metrics import Metrics
from cpr_operator.queue import DEBOUNCE_S, ReconcileQueue
from simulation.control_plane.clock import in_virtual_time, now


class Watches:
    """The handlers, what woke passes over the job, and the pod events that the controller received."""

    def __init__(self) -> None:
        self.watched = WatchCache(now)
        self.passes = 0
        self.pods: list[str] = []
        self.queue = ReconcileQueue(self._pass, random.Random(1))
        registry = make_registry(self.queue, Metrics(), self.watched, self._on_pod_event, lambda *_: None)
        self.releases: list[str] = []
        self.releasing = ReconcileQueue(self._release, random.Random(1))
        watch_workloads(registry, self.queue, self.releasing)
        self._handlers: dict[str, Any] = {str(each.id): each.fn for each in registry._watching.get_all_handlers()}

    async def _pass(self, namespace: str, name: str) -> float:
        self.passes += 1
        return 3600.0

    async def _release(self, namespace: str, name: str) -> None:
        self.releases.append(name)

    def _on_pod_event(self, namespace: str, name: str, pod: PodView) -> None:
        self.pods.append(pod.name)

    async def show(self, handler: str, kind: str | None, body: dict[str, Any]) -> int:
        """Show an event; returns how many passes follow."""
        before, fn = self.passes, next(fn for name, fn in self._handlers.items() if handler in name)
        await fn(type=kind, event={"type": kind, "object": body})
        await asyncio.sleep(2 * DEBOUNCE_S)
        return self.passes - before

    async def job(self, kind: str | None, version: str) -> int:
        return await self.show("job_changed", kind, job(version))

    async def pod(self, kind: str | None, phase: str = "Running") -> int:
        return await self.show("pod_changed", kind, pod(phase))


def job(version: str) -> dict[str, Any]:
    meta = {"namespace": "n", "name": "job", "uid": "uid", "resourceVersion": version}
    return {"metadata": meta, "status": {"phase": "Recovering"}}


def pod(phase: str) -> dict[str, Any]:
    meta = {"namespace": "n", "name": "pod", "uid": "pod-uid", "labels": {env.LABEL_JOB: "job"}}
    return {"metadata": meta, "status": {"phase": phase}}


@in_virtual_time
async def test_own_writes_wake_no_job() -> None:
    watches = Watches()
    watches.watched.store_job(0, job("7"))
    assert await watches.job("MODIFIED", "7") == 0
    assert await watches.job("MODIFIED", "8") == 1
    assert await watches.job("MODIFIED", "8") == 0


@in_virtual_time
async def test_a_pod_wakes_when_it_changes() -> None:
    watches = Watches()
    assert await watches.pod("ADDED", "Pending") == 1
    assert await watches.pod("MODIFIED", "Pending") == 0
    assert await watches.pod("MODIFIED") == 1
    assert await watches.pod("DELETED") == 1
    assert watches.pods == ["pod"] * 3


@in_virtual_time
async def test_listed_pods_wait_for_the_first_pass_and_wake_later_only_if_changed() -> None:
    watches = Watches()
    assert await watches.pod(None) == 0
    assert await watches.job(None, "7") == 1
    assert await watches.pod(None) == 0
    assert watches.pods == []
    assert await watches.pod(None, "Failed") == 1
    assert watches.pods == ["pod"]


@in_virtual_time
async def test_deleted_job_is_forgotten_and_read() -> None:
    watches = Watches()
    await watches.job("ADDED", "7")
    await watches.pod("ADDED")
    assert await watches.job("DELETED", "9") == 1
    assert watches.watched.find_job("n", "job") is None
    assert watches.watched.find_pods("n", "job") is None


@in_virtual_time
async def test_changed_workload_leads_to_a_pass() -> None:
    watches = Watches()
    meta = {"namespace": "n", "name": "job-uid", "labels": {env.LABEL_JOB: "job"}}
    assert await watches.show("workload_changed", "MODIFIED", {"metadata": meta}) == 0  # its first pass is yet to come
    await watches.job("ADDED", "1")
    assert await watches.show("workload_changed", "MODIFIED", {"metadata": meta}) == 1


@in_virtual_time
async def test_deleted_workload_is_released_without_its_job() -> None:
    watches = Watches()
    meta = {"namespace": "n", "name": "job-uid", "labels": {env.LABEL_JOB: "job"}, "finalizers": [QUOTA_FINALIZER]}
    await watches.show("workload_changed", None, {"metadata": meta})
    assert watches.releases == []
    deleted = {"metadata": {**meta, "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    await watches.show("workload_changed", None, deleted)
    assert watches.releases == ["job-uid"]
    await watches.show("workload_changed", "DELETED", deleted)
    assert watches.releases == ["job-uid"]
