from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from cpr_operator.cluster.pod_reports import MAX_IN_FLIGHT, MAX_REPORT_BYTES, ReportFetcher
from cpr_operator.cluster.views import PodView

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def pod_that(answers: Handler) -> AsyncIterator[PodView]:
    app = web.Application()
    app.router.add_get("/status", answers)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    yield PodView("p", "u", "o", "shard", 0, 1, "Running", 0.0, host="127.0.0.1", port_base=port - 1)
    await runner.cleanup()


@pytest.fixture
async def fetcher() -> AsyncIterator[ReportFetcher]:
    made = ReportFetcher()
    yield made
    await made.close()


async def test_a_report_is_the_body(fetcher: ReportFetcher) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="report")

    async with pod_that(answer) as pod:
        assert await fetcher.fetch(pod, 5.0) == b"report"


async def test_an_error_and_a_flood_are_no_reports(fetcher: ReportFetcher) -> None:
    async def fail(_: web.Request) -> web.Response:
        return web.Response(status=503, text="not yet")

    async def flood(_: web.Request) -> web.Response:
        return web.Response(body=bytes(MAX_REPORT_BYTES + 1))

    for handler in (fail, flood):
        async with pod_that(handler) as pod:
            assert await fetcher.fetch(pod, 5.0) is None


async def test_a_pod_that_dribbles_does_not_stretch_its_deadline(fetcher: ReportFetcher) -> None:
    async def dribble(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(100):
            await response.write(b".")
            await asyncio.sleep(0.05)
        return response

    async with pod_that(dribble) as pod:
        assert await fetcher.fetch(pod, 0.2) is None


async def test_nobody_listening_is_no_report(fetcher: ReportFetcher) -> None:
    pod = PodView("p", "u", "o", "shard", 0, 1, "Running", 0.0, host="127.0.0.1", port_base=1)
    assert await fetcher.fetch(pod, 5.0) is None


async def test_requests_in_flight_are_bounded(fetcher: ReportFetcher) -> None:
    running, most = 0, 0
    release = asyncio.Event()

    async def hold(_: web.Request) -> web.Response:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await release.wait()
        running -= 1
        return web.Response(text="report")

    async with pod_that(hold) as pod:
        asked = [asyncio.create_task(fetcher.fetch(pod, 20.0)) for _ in range(MAX_IN_FLIGHT + 10)]
        async with asyncio.timeout(20):
            while running < MAX_IN_FLIGHT:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        release.set()
        assert await asyncio.gather(*asked) == [b"report"] * (MAX_IN_FLIGHT + 10)
    assert most == MAX_IN_FLIGHT
