"""kopf's watches over HTTP, against an API server that fails in all the ways that one does."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import kopf
import pytest

from cpr_operator import watches
from cpr_operator.cluster.watch_cache import Kind, WatchCache
from cpr_operator.handlers import make_registry
from cpr_operator.metrics import Metrics
from cpr_operator.queue import ReconcileQueue
from cpr_operator.watches import Watches
from support.fake_api_server import JOBS, PODS, FakeApiServer

#: The factor by which waits are shorter.
HASTE = 100.0
#: The failed attempts of an outage.
ATTEMPTS = 10


@dataclass
class Seen:
    """The results of the watches."""

    watched: WatchCache = field(default_factory=lambda: WatchCache(time.monotonic))
    passes: list[str] = field(default_factory=list)
    running: list[str] = field(default_factory=list)
    lists: list[str] = field(default_factory=list)
    shown: list[bool] = field(default_factory=list)

    @property
    def pods(self) -> set[str]:
        """The names of the pods of job j."""
        return {pod.name for pod in self.watched.find_pods("n", "j") or ()}


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of kopf, which are short."""
    sleep, found = asyncio.sleep, list[float]()

    def pause(delay_s: float, *result: object) -> Awaitable[object]:
        found.append(delay_s)
        return sleep(delay_s / HASTE, *result)

    monkeypatch.setattr(asyncio, "sleep", pause)
    monkeypatch.setattr(watches, "RESTART_S", 0.02)
    return found


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    running = FakeApiServer()
    running.open()
    yield running
    running.stop()


@asynccontextmanager
async def watching(server: FakeApiServer) -> AsyncIterator[tuple[Watches, Seen, asyncio.Task[None]]]:
    seen = Seen()

    async def run_pass(_: str, name: str) -> None:
        seen.passes.append(name)

    def handlers() -> kopf.OperatorRegistry:
        queue = ReconcileQueue(run_pass, random.Random(1))
        return make_registry(
            queue,
            Metrics(),
            seen.watched,
            lambda *_: None,
            lambda _, name: seen.running.append(name),
        )

    def listed(kind: Kind, namespace: str) -> None:
        seen.watched.listed(kind, namespace)
        seen.lists.append(kind)

    def shown() -> None:
        seen.shown.append(server.watched(PODS) and server.watched(JOBS))

    running = Watches((), handlers, listed, shown, lambda **_: kopf.ConnectionInfo(server=server.url))
    task = asyncio.create_task(running.run())
    try:
        yield running, seen, task
    finally:
        running.stop()
        await task


async def until(found: Callable[[], bool], *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
    while not found():
        await sleep(0.01)


async def test_only_pods_of_jobs_are_asked_for_and_in_pages(server: FakeApiServer) -> None:
    for index in range(watches.PAGE + 1):
        server.put_pod(f"ours-{index}", {"cprjob.io/job": "j"})
    server.put_pod("stranger", {"app": "web"})
    async with watching(server) as (_, seen, _):
        await until(lambda: server.watched(PODS) and server.watched(JOBS) and len(seen.pods) > watches.PAGE)
        server.put_pod("another-stranger", {})
        server.put_pod("late", {"cprjob.io/job": "j"})
        await until(lambda: "late" in seen.pods)
    assert "stranger" not in "".join(seen.pods)
    of_pods = [query for path, query in server.requests if path == PODS]
    assert {query.get("labelSelector") for query in of_pods} == {"cprjob.io/job"}
    lists = [query for _, query in server.requests if "watch" not in query]
    assert {query.get("limit") for query in lists} == {str(watches.PAGE)}
    assert [query.get("continue") for path, query in server.requests if path == PODS][:2] == [None, str(watches.PAGE)]


@pytest.mark.parametrize("code", [503, 401, 403])
async def test_refusals_end_nothing(server: FakeApiServer, pauses: list[float], code: int) -> None:
    async with watching(server) as (running, seen, task):
        await until(lambda: server.watched(PODS) and server.watched(JOBS))
        server.fault = code
        server.end_watches()
        await until(lambda: server.refused >= ATTEMPTS)
        assert not task.done()
        server.fault = None
        server.put_pod("p", {"cprjob.io/job": "j"})
        server.put_job("new")
        await until(lambda: "p" in seen.pods and "new" in seen.passes and running.ready)


async def test_refused_connections_end_nothing(server: FakeApiServer, pauses: list[float]) -> None:
    async with watching(server) as (_, seen, task):
        await until(lambda: server.watched(PODS) and server.watched(JOBS))
        server.close()
        before = sum(each > 0 for each in pauses)
        await until(lambda: sum(each > 0 for each in pauses) >= before + ATTEMPTS)
        assert not task.done()
        server.open()
        server.put_job("new")
        server.put_pod("p", {"cprjob.io/job": "j"})
        await until(lambda: "new" in seen.passes and "p" in seen.pods)


async def test_a_server_that_fails_at_the_start_is_asked_again(server: FakeApiServer, pauses: list[float]) -> None:
    server.fault = 503
    async with watching(server) as (running, _, task):
        await until(lambda: server.refused >= ATTEMPTS)
        assert not task.done()
        assert not running.ready
        server.fault = None
        await until(lambda: running.ready)


async def test_lost_history_is_listed_again(server: FakeApiServer) -> None:
    async with watching(server) as (_, seen, _):
        await until(lambda: server.watched(PODS) and server.watched(JOBS))
        server.lose_history()
        server.put_job("meanwhile")
        server.put_pod("p", {"cprjob.io/job": "j"})
        await until(lambda: "meanwhile" in seen.passes and "p" in seen.pods)
    assert sorted(seen.lists) == ["jobs", "jobs", "pods", "pods"]


async def test_pod_deleted_between_watches_leaves_the_cache(server: FakeApiServer) -> None:
    server.put_job("j")
    for name in ("stays", "goes"):
        server.put_pod(name, {"cprjob.io/job": "j"})
    async with watching(server) as (_, seen, _):
        await until(lambda: seen.pods == {"stays", "goes"} and server.watched(PODS))
        server.vanish(PODS, "goes")
        server.lose_history()
        await until(lambda: seen.pods == {"stays"})


async def test_listed_running_job_is_reported_to_the_controller(server: FakeApiServer) -> None:
    server.put_job("trains")
    server.put_job("starts", phase="Starting")
    async with watching(server) as (_, seen, _):
        await until(lambda: {"trains", "starts"} <= set(seen.passes))
    assert seen.running == ["trains"]


async def test_it_is_ready_when_jobs_and_pods_are_listed_and_not_before(server: FakeApiServer) -> None:
    async with watching(server) as (running, seen, _):
        assert not running.ready
        await until(lambda: running.ready)
        assert sorted(seen.lists) == ["jobs", "pods"]
        assert {path for path, query in server.requests if "watch" not in query} == {JOBS, PODS}


async def test_a_crd_that_is_missing_at_the_start_is_looked_for_again(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watches, "LISTED_S", 2.0)
    monkeypatch.setattr(watches, "RESTART_S", 0.02)
    server.has_crd = False
    async with watching(server) as (running, seen, _):
        # On a busy machine the first of these lines names pods, too: the time was over before they were listed.
        await until(lambda: f"not listed: {JOBS}; install the CRD" in caplog.text)
        assert "pods" in seen.lists
        assert not running.ready
        monkeypatch.setattr(watches, "LISTED_S", 30.0)
        server.has_crd = True
        server.put_job("first")
        await until(lambda: "first" in seen.passes and running.ready)


async def test_end_of_the_initial_lists_is_signalled_once(server: FakeApiServer) -> None:
    server.put_pod("p", {"cprjob.io/job": "j"})
    async with watching(server) as (running, seen, _):
        await until(lambda: bool(seen.shown))
        assert running.ready
        server.end_watches()
        await until(lambda: server.watched(PODS) and server.watched(JOBS))
        await asyncio.sleep(2 * watches.SHOWN_S)
        assert (seen.shown, seen.pods) == ([True], {"p"})


async def test_first_passes_wait_for_no_list_that_is_not_answered(
    server: FakeApiServer, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "LISTED_S", 0.1)
    server.has_crd = False
    async with watching(server) as (running, seen, _):
        await until(lambda: bool(seen.shown))
        assert not running.ready


async def test_in_chosen_namespaces_every_list_counts() -> None:
    lists = watches.Lists(("a", "b"))
    answers = [lists.answered(f"/prefix/api/v1/namespaces/{each}/pods") for each in "ab"]
    assert answers == [("pods", "a"), ("pods", "b")]
    assert lists.answered("/apis/cprjob.io/v1alpha1/namespaces/a/cprjobs") == ("jobs", "a")
    assert lists.answered("/apis/apps/v1/deployments") is None
    assert lists.missing == {"/apis/cprjob.io/v1alpha1/namespaces/b/cprjobs"}
    watched = ["/apis/apps/v1/deployments", *(f"/prefix{each}" for each in sorted(lists.unwatched))]
    assert [lists.watched(each) for each in (*watched, watched[-1])] == [*[False] * 4, True, False]
