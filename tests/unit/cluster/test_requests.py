"""What the API server is asked for, by whom: an HTTP server in its place keeps the requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from aiohttp import web
from kubernetes.aio import client as kubernetes_client

from cpr_operator.cluster.api_server import WRITES_PER_S, ApiServer
from cpr_operator.cluster.kubernetes import KubernetesCluster
from cpr_operator.cluster.pod_lists import KEPT_S, PodLists
from cpr_operator.cluster.protocol import BusyError, Priority
from cpr_operator.cluster.views import JobView

JOB = JobView("n", "job", "uid", 1, "7", 0.0, deleting=False)
OBJECT = {"metadata": {"name": "job", "namespace": "n", "uid": "uid", "resourceVersion": "8"}, "items": []}


@pytest.fixture
def asked() -> list[web.Request]:
    return []


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lists(clock: Clock) -> PodLists:
    return PodLists(clock)


@pytest.fixture
async def cluster(asked: list[web.Request], lists: PodLists) -> AsyncIterator[KubernetesCluster]:
    async def answer(request: web.Request) -> web.Response:
        asked.append(request)
        if "changes-meanwhile" in request.path:
            lists.changed("changes-meanwhile", "job")
        return web.json_response(OBJECT)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    configuration = kubernetes_client.Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}")
    made = KubernetesCluster(ApiServer(configuration), lambda: 0.0, lists)
    yield made
    await made.close()
    await runner.cleanup()


async def test_a_list_is_of_the_present_unless_a_cached_one_will_do(
    cluster: KubernetesCluster, asked: list[web.Request]
) -> None:
    await cluster.list_pods(JOB, cached=True)
    await cluster.list_pods(JOB)
    await cluster.list_pods(JOB)
    assert [request.query.get("resourceVersion") for request in asked] == ["0", None, None]
    assert {request.query["labelSelector"] for request in asked} == {"cprjob.io/job=job"}


async def test_a_list_serves_again_until_a_watch_sees_a_change_or_a_minute_has_passed(
    cluster: KubernetesCluster, asked: list[web.Request], lists: PodLists, clock: Clock
) -> None:
    async def requests(namespace: str = "n") -> int:
        before = len(asked)
        await cluster.at(Priority.REGULAR).list_pods(replace(JOB, namespace=namespace), cached=True)
        return len(asked) - before

    await cluster.list_pods(JOB)
    assert await requests() == 0
    lists.changed("n", "another")
    assert await requests() == 0
    lists.changed("n", "job")
    assert [await requests(), await requests()] == [1, 0]
    clock.now += KEPT_S
    assert [await requests(), await requests()] == [1, 0]
    lists.forget("n", "job")
    assert await requests() == 1
    assert [await requests("changes-meanwhile"), await requests("changes-meanwhile")] == [1, 1]


async def test_all_priorities_share_one_ration_of_writes(cluster: KubernetesCluster) -> None:
    regular, urgent = cluster.at(Priority.REGULAR), cluster.at(Priority.RECOVERY)
    writes = (regular.write_status(JOB, {}) for _ in range(round(WRITES_PER_S)))
    answers = await asyncio.gather(*writes, return_exceptions=True)
    assert any(isinstance(each, BusyError) for each in answers)
    await urgent.write_status(JOB, {})
    await regular.get_job("n", "job")
