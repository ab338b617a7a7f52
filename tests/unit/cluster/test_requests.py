"""Requests to the API server: an HTTP server in its place records them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio import client as kubernetes_client

from cpr_operator.cluster.api_server import AT_ONCE, WRITES_PER_S, ApiServer
from cpr_operator.cluster.kubernetes import KubernetesCluster
from cpr_operator.cluster.protocol import BusyError, ConflictError, Priority
from cpr_operator.cluster.views import JobView, PodView, PodWarning
from cpr_operator.cluster.watch_cache import FRESH_S, WatchCache
from cpr_operator.election import ClusterLeases

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

POD = PodView("pod", "uid", "uid", "shard", 0, 1, "Running", 0.0)
OTHER = replace(POD, uid="another")
JOB = JobView("n", "job", "uid", 1, "7", 0.0, deleting=False)
OBJECT: dict[str, Any] = {
    "metadata": {"name": "job", "namespace": "n", "uid": "uid", "resourceVersion": "8"},
    "items": [],
}


@pytest.fixture
def requests_seen() -> list[web.Request]:
    return []


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watched(clock: Clock) -> WatchCache:
    return WatchCache(clock)


@pytest.fixture
async def cluster(requests_seen: list[web.Request], watched: WatchCache) -> AsyncIterator[KubernetesCluster]:
    async def answer(request: web.Request) -> web.Response:
        requests_seen.append(request)
        if "changes-meanwhile" in request.path:
            watched.on_pod_event("changes-meanwhile", "job", POD, deleted=True)
            watched.on_pod_event("changes-meanwhile", "job", OTHER, deleted=False)
            watched.on_job_event(version(str(len(requests_seen)), namespace="changes-meanwhile"))
        if "outdated" in request.path:
            return web.json_response({"kind": "Status", "code": 409, "reason": "Conflict"}, status=409)
        return web.json_response(OBJECT)

    async with serving(answer) as configuration:
        made = KubernetesCluster(ApiServer(configuration), lambda: 0.0, watched)
        yield made
        await made.close()


def version(number: str, namespace: str = "n") -> dict[str, Any]:
    """A version of the job, as a watch shows it."""
    return {**OBJECT, "metadata": {**OBJECT["metadata"], "namespace": namespace, "resourceVersion": number}}


@asynccontextmanager
async def serving(answer: Handler) -> AsyncIterator[kubernetes_client.Configuration]:
    """An API server that answers like this, and how to reach it."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield kubernetes_client.Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}")
    await runner.cleanup()


async def test_a_list_is_of_the_present_unless_a_cached_one_will_do(
    cluster: KubernetesCluster, requests_seen: list[web.Request]
) -> None:
    await cluster.list_pods(JOB, cached=True)
    await cluster.list_pods(JOB)
    await cluster.list_pods(JOB)
    assert [request.query.get("resourceVersion") for request in requests_seen] == ["0", None, None]
    assert {request.query["labelSelector"] for request in requests_seen} == {"cprjob.io/job=job"}


async def test_cached_list_is_valid_until_the_watch_lists_again_or_it_is_old(
    cluster: KubernetesCluster, requests_seen: list[web.Request], watched: WatchCache, clock: Clock
) -> None:
    async def requests(namespace: str = "n") -> int:
        before = len(requests_seen)
        await cluster.at(Priority.REGULAR).list_pods(replace(JOB, namespace=namespace), cached=True)
        return len(requests_seen) - before

    await cluster.list_pods(JOB)
    assert await requests() == 0
    watched.on_pod_event("n", "job", POD, deleted=False)
    assert await requests() == 0
    watched.listed("pods", "another")
    assert await requests() == 0
    watched.listed("pods", "n")
    assert [await requests(), await requests()] == [1, 0]
    clock.now += FRESH_S
    assert [await requests(), await requests()] == [1, 0]
    watched.forget("n", "job")
    assert await requests() == 1


async def test_cached_job_has_the_version_of_the_watch_or_of_the_last_answer(
    cluster: KubernetesCluster, requests_seen: list[web.Request], watched: WatchCache, clock: Clock
) -> None:
    async def requests(namespace: str = "n") -> int:
        before = len(requests_seen)
        await cluster.at(Priority.REGULAR).get_job(namespace, "job", cached=True)
        return len(requests_seen) - before

    assert [await requests(), await requests()] == [1, 0]
    assert not watched.on_job_event(version("8"))
    assert watched.on_job_event(version("9"))
    assert (await cluster.get_job("n", "job", cached=True)).resource_version == "9"
    await cluster.write_status(JOB, {})
    assert (await cluster.get_job("n", "job", cached=True)).resource_version == "8"
    assert not watched.on_job_event(version("8"))
    await cluster.get_job("n", "job")
    assert len(requests_seen) == 3
    clock.now += FRESH_S
    assert [await requests(), await requests()] == [1, 0]
    watched.listed("jobs", "")
    assert [await requests(), await requests()] == [1, 0]
    watched.forget("n", "job")
    assert await requests() == 1


async def test_answer_does_not_replace_a_newer_watch_event(cluster: KubernetesCluster, watched: WatchCache) -> None:
    answer = await cluster.get_job("changes-meanwhile", "job")
    cached = await cluster.get_job("changes-meanwhile", "job", cached=True)
    assert (answer.resource_version, cached.resource_version) == ("8", "1")
    watched.on_pod_event("changes-meanwhile", "job", POD, deleted=False)
    job = replace(JOB, namespace="changes-meanwhile")
    assert await cluster.list_pods(job) == ()
    assert await cluster.list_pods(job, cached=True) == (OTHER,)


async def test_a_job_is_read_again_after_a_conflict(cluster: KubernetesCluster, watched: WatchCache) -> None:
    watched.on_job_event(version("7", namespace="outdated"))
    job = await cluster.get_job("outdated", "job", cached=True)
    with pytest.raises(ConflictError):
        await cluster.write_status(job, {})
    with pytest.raises(ConflictError):  # the server is requests_seen, which answers everything like that
        await cluster.get_job("outdated", "job", cached=True)


async def test_newest_warning_of_a_pod_is_the_one_that_happened_last() -> None:
    requests_seen = list[web.Request]()

    def event(reason: str, **stamps: Any) -> dict[str, Any]:
        return {"reason": reason, "message": f"what {reason} says", "lastTimestamp": None, **stamps}

    listed = [
        event("Old", lastTimestamp="2026-01-01T00:00:01Z"),
        event("Repeated", eventTime="2026-01-01T00:00:00Z", series={"lastObservedTime": "2026-01-01T00:00:09Z"}),
        event("Once", eventTime="2026-01-01T00:00:05.000000Z"),
    ]

    async def answer(request: web.Request) -> web.Response:
        requests_seen.append(request)
        return web.json_response({"metadata": {}, "items": listed})

    async with serving(answer) as configuration:
        cluster = KubernetesCluster(ApiServer(configuration), lambda: 0.0, WatchCache(lambda: 0.0))
        pod = replace(POD, namespace="n")
        assert await cluster.newest_warning(pod) == PodWarning("Repeated", "what Repeated says")
        assert requests_seen[0].path == "/api/v1/namespaces/n/events"
        assert requests_seen[0].query["fieldSelector"] == "involvedObject.uid=uid,type=Warning"
        listed.clear()
        assert await cluster.newest_warning(pod) is None
        await cluster.close()


async def test_all_priorities_share_one_limit_of_writes(cluster: KubernetesCluster) -> None:
    regular, urgent = cluster.at(Priority.REGULAR), cluster.at(Priority.RECOVERY)
    writes = (regular.write_status(JOB, {}) for _ in range(round(WRITES_PER_S)))
    answers = await asyncio.gather(*writes, return_exceptions=True)
    assert any(isinstance(each, BusyError) for each in answers)
    await urgent.write_status(JOB, {})
    await regular.get_job("n", "job")


async def test_a_server_that_answers_slowly_has_few_requests_and_the_lease_does_not_wait_for_them() -> None:
    """The lease is read and written over connections of its own, as the operator's process does it."""
    under_way, most, slow = 0, 0, asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        nonlocal under_way, most
        if "leases" not in request.path:
            under_way += 1
            most = max(most, under_way)
            await slow.wait()
            under_way -= 1
        return web.json_response({**OBJECT, "spec": {"holderIdentity": "me"}})

    async with serving(answer) as configuration:
        works, elects = ApiServer(configuration), ApiServer(configuration)
        urgent = works.at(Priority.RECOVERY)
        requests_seen = [asyncio.create_task(urgent.get("/x")) for _ in range(10 * AT_ONCE)]
        requests_seen += [asyncio.create_task(urgent.replace("/x", {})) for _ in range(AT_ONCE)]
        while under_way < 2 * AT_ONCE:  # noqa: ASYNC110 -- there is no event to wait for
            await asyncio.sleep(0.01)
        lease = await ClusterLeases(elects, "n", "lease").read()
        assert lease is not None
        assert lease.holder == "me"
        assert works.waiting == 9 * AT_ONCE
        slow.set()
        await asyncio.gather(*requests_seen)
        assert most == 2 * AT_ONCE
        await works.close()
        await elects.close()


async def test_creates_with_a_slow_admission_webhook_delay_no_other_namespace() -> None:
    hung, free = asyncio.Event(), asyncio.Event()
    held = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal held
        if "/namespaces/slow/" in request.path:
            held += 1
            hung.set()
            await free.wait()
        return web.json_response(OBJECT)

    async with serving(answer) as configuration:
        server = ApiServer(configuration)
        urgent = server.at(Priority.RECOVERY)
        slow = [asyncio.create_task(urgent.create("/api/v1/namespaces/slow/pods", {})) for _ in range(2 * AT_ONCE)]
        await hung.wait()
        await server.create("/api/v1/namespaces/quick/pods", {})
        assert 0 < held <= AT_ONCE // 2
        free.set()
        await asyncio.gather(*slow)
        await server.close()


@pytest.mark.parametrize(
    ("status", "kinds", "has"),
    [(200, ["PriorityClass", "Workload", "PodGroup"], True), (200, ["PriorityClass"], False), (404, [], False)],
    ids=["with the feature", "without the feature", "an earlier version"],
)
async def test_pod_groups_are_discovered(status: int, kinds: list[str], has: bool) -> None:  # noqa: FBT001
    async def answer(request: web.Request) -> web.Response:
        assert request.path == "/apis/scheduling.k8s.io/v1beta1"
        return web.json_response({"resources": [{"kind": kind} for kind in kinds]}, status=status)

    async with serving(answer) as configuration:
        cluster = KubernetesCluster(ApiServer(configuration), lambda: 0.0)
        assert await cluster.has_pod_groups() is has
        await cluster.close()
