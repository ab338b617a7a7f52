from __future__ import annotations

import asyncio
import gzip
import socket
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from aiohttp import web

from cpr_contract.reports import RECORDED_HEADER
from cpr_operator.cluster.pod_reports import (
    MAX_IN_FLIGHT,
    MAX_OF_JOB,
    MAX_SILENT,
    MAX_SILENT_OF_JOB,
    ReportFetcher,
    reaches,
)
from cpr_operator.cluster.views import PodView

#: A report may have so many bytes.
MOST = 1000

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def pod_at(port: int, job: str = "o", uid: str = "u") -> PodView:
    return PodView("p", uid, job, "shard", 0, 1, "Running", 0.0, host="127.0.0.1", port_base=port - 1)


@asynccontextmanager
async def pod_that(answers: Handler) -> AsyncIterator[PodView]:
    app = web.Application()
    app.router.add_get("/status", answers)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield pod_at(port)
    finally:
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
        assert await fetcher.fetch(pod, 5.0, MOST) == b"report"


async def test_a_pod_is_told_what_is_recorded(fetcher: ReportFetcher) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=request.headers.get(RECORDED_HEADER, "nothing"))

    async with pod_that(answer) as pod:
        assert await fetcher.fetch(pod, 5.0, MOST, '{"anchor": "job/7"}') == b'{"anchor": "job/7"}'
        assert await fetcher.fetch(pod, 5.0, MOST) == b"nothing"


async def test_an_error_and_a_flood_are_no_reports(fetcher: ReportFetcher) -> None:
    async def fail(_: web.Request) -> web.Response:
        return web.Response(status=503, text="not yet")

    async def flood(_: web.Request) -> web.Response:
        return web.Response(body=bytes(MOST + 1))

    for handler in (fail, flood):
        async with pod_that(handler) as pod:
            assert await fetcher.fetch(pod, 5.0, MOST) is None


async def test_a_pod_that_dribbles_does_not_stretch_its_deadline(fetcher: ReportFetcher) -> None:
    async def dribble(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(100):
            await response.write(b".")
            await asyncio.sleep(0.05)
        return response

    async with pod_that(dribble) as pod:
        assert await fetcher.fetch(pod, 0.2, MOST) is None


async def test_nobody_listening_is_no_report(fetcher: ReportFetcher) -> None:
    assert await fetcher.fetch(pod_at(2), 5.0, MOST) is None


async def test_a_packed_report_is_refused_and_never_unpacked(
    fetcher: ReportFetcher, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = []

    def packed(body: bytes, encoding: str) -> Handler:
        async def answer(request: web.Request) -> web.Response:
            wanted.append(request.headers.get("Accept-Encoding"))
            return web.Response(body=body, headers={"Content-Encoding": encoding})

        return answer

    bomb = gzip.compress(gzip.compress(bytes(64 << 20), 9), 9)
    assert len(bomb) < 1000
    tracemalloc.start()
    try:
        for body, encoding in ((gzip.compress(b"report"), "gzip"), (bomb, "gzip, gzip"), (b"report", "Identity")):
            async with pod_that(packed(body, encoding)) as pod:
                expected = b"report" if encoding == "Identity" else None
                assert await fetcher.fetch(pod, 20.0, MOST) == expected
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert wanted == ["identity"] * 3
    assert "p: report rejected: Content-Encoding is 'gzip, gzip', not identity" in caplog.text


@pytest.mark.parametrize("pauses", [False, True])
async def test_a_pod_that_was_silent_is_asked_after_a_pause_if_there_are_pauses(*, pauses: bool) -> None:
    released = asyncio.Event()

    async def answer(_: web.Request) -> web.Response:
        await released.wait()
        return web.Response(text="report")

    fetcher = ReportFetcher(lambda: 0.0, pauses=pauses)
    async with pod_that(answer) as pod:
        assert await fetcher.fetch(pod, 0.05, MOST) is None
        released.set()
        assert await fetcher.fetch(pod, 20.0, MOST) == (None if pauses else b"report")
    await fetcher.close()


async def test_requests_in_flight_are_bounded_for_each_job(fetcher: ReportFetcher) -> None:
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
        asked = [asyncio.create_task(fetcher.fetch(pod, 20.0, MOST)) for _ in range(MAX_OF_JOB + 10)]
        async with asyncio.timeout(20):
            while running < MAX_OF_JOB:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        release.set()
        assert await asyncio.gather(*asked) == [b"report"] * (MAX_OF_JOB + 10)
    assert most == MAX_OF_JOB


async def test_silent_pods_do_not_hold_up_another_job(fetcher: ReportFetcher) -> None:
    async def say_nothing(_: web.Request) -> web.Response:
        await asyncio.sleep(3600)
        return web.Response()

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="report")

    async with pod_that(say_nothing) as silent, pod_that(answer) as healthy:
        pods = [replace(silent, uid=f"s{n}", owner_uid="another") for n in range(200)]
        asked = [asyncio.create_task(fetcher.fetch(pod, 3600.0, MOST)) for pod in pods]
        await asyncio.sleep(0.05)
        async with asyncio.timeout(20):
            assert await fetcher.fetch(healthy, 3600.0, MOST) == b"report"
        for each in asked:
            each.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


@pytest.mark.parametrize("silent", [False, True])
async def test_many_jobs_of_one_namespace_do_not_hold_up_another_namespace(*, silent: bool) -> None:
    now, hangs, release = 0.0, 0, asyncio.Event()
    fetcher = ReportFetcher(lambda: now)

    async def never(_: web.Request) -> web.Response:
        await asyncio.Future[None]()
        raise AssertionError

    async def hang(_: web.Request) -> web.Response:
        nonlocal hangs
        hangs += 1
        await release.wait()
        return web.Response(text="late")

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="report")

    at_once, of_job = (MAX_SILENT, MAX_SILENT_OF_JOB) if silent else (MAX_IN_FLIGHT, MAX_OF_JOB)
    async with pod_that(never) as mute, pod_that(hang) as hung, pod_that(answer) as healthy:
        slow = replace(hung, namespace="tenant")
        jobs = range(2 * at_once // of_job)
        pods = [replace(slow, uid=f"{job}-{n}", owner_uid=f"job-{job}") for job in jobs for n in range(of_job)]
        other = replace(healthy, namespace="other", owner_uid="other")
        if silent:
            # Another server takes what is given up here: it may read a request after the client is gone.
            port_base = mute.port_base
            assert await fetcher.fetch(replace(other, port_base=port_base), 0.05, MOST) is None
            given_up = (fetcher.fetch(replace(pod, port_base=port_base), 0.05, MOST) for pod in pods)
            assert set(await asyncio.gather(*given_up)) == {None}
            now = 3600.0
        asked = [asyncio.create_task(fetcher.fetch(pod, 3600.0, MOST)) for pod in pods]
        async with asyncio.timeout(20):
            while hangs < at_once // 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert await fetcher.fetch(other, 3600.0, MOST) == b"report"
        assert hangs == at_once // 2
        release.set()
        assert set(await asyncio.gather(*asked)) == {b"late"}
    await fetcher.close()


async def test_a_pod_that_had_no_turn_was_not_silent(fetcher: ReportFetcher) -> None:
    heard, release = 0, asyncio.Event()

    async def hold(_: web.Request) -> web.Response:
        nonlocal heard
        heard += 1
        await release.wait()
        return web.Response(text="report")

    async with pod_that(hold) as pod:
        asked = [asyncio.create_task(fetcher.fetch(pod, 20.0, MOST)) for _ in range(MAX_OF_JOB)]
        async with asyncio.timeout(20):
            while heard < MAX_OF_JOB:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        other = replace(pod, uid="other")
        assert await fetcher.fetch(other, 0.1, MOST) is None
        assert heard == MAX_OF_JOB
        release.set()
        assert await fetcher.fetch(other, 20.0, MOST) == b"report"
        await asyncio.gather(*asked)


async def test_a_silent_pod_is_asked_after_a_pause_and_then_at_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, speaks, heard, passed_s, limit_s = 0.0, False, 0, 0.0, 10.0
    fetcher = ReportFetcher(lambda: now)
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "time", lambda: time.monotonic() + passed_s)

    async def answer(_: web.Request) -> web.Response:
        nonlocal heard, passed_s
        heard += 1
        if not speaks:
            passed_s += limit_s  # who asks has no time left now, and not before it was heard
            await asyncio.sleep(3600)
        return web.Response(text="report")

    async with pod_that(answer) as pod:
        assert [await fetcher.fetch(pod, limit_s, MOST) for _ in range(3)] == [None] * 3
        assert heard == 1
        now, speaks = 1.0, True
        assert [await fetcher.fetch(pod, 20.0, MOST) for _ in range(3)] == [b"report"] * 3
        assert heard == 4
    await fetcher.close()


async def test_a_pod_is_reached_whether_its_process_accepts_hangs_or_is_gone() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=1) as hung:
        pod = pod_at(hung.getsockname()[1])
        assert await reaches(pod)
    assert await reaches(pod), "its kernel refuses"


async def test_a_pod_of_which_no_kernel_answers_is_not_reached() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        pod = pod_at(full.getsockname()[1])
        # Linux drops what comes to a full queue, as a lost node does.
        waiting = [await asyncio.open_connection("127.0.0.1", pod.port_base + 1)]
        assert not await reaches(pod)
        for _, writer in waiting:
            writer.close()
