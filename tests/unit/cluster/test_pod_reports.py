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
    FORGET_S,
    LAST_PAUSE_S,
    MAX_IN_FLIGHT,
    MAX_OF_JOB,
    MAX_UNRESPONSIVE,
    MAX_UNRESPONSIVE_OF_JOB,
    UNRESPONSIVE_POLLS,
    ReportFetcher,
    UnresponsivePods,
    pause_s,
    reaches,
)
from cpr_operator.cluster.views import PodView

#: The maximum bytes of a report.
MOST = 1000
#: Longer than any test takes.
NEVER_S = 3600.0

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def pod_at(port: int, job: str = "o", uid: str = "u", host: str = "127.0.0.1") -> PodView:
    return PodView("p", uid, job, "shard", 0, 1, "Running", 0.0, host=host, port_base=port - 1)


@asynccontextmanager
async def pod_that(answers: Handler, host: str = "127.0.0.1") -> AsyncIterator[PodView]:
    app = web.Application()
    app.router.add_get("/status", answers)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, host, 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield pod_at(port, host=host)
    finally:
        await runner.cleanup()


@pytest.fixture
async def fetcher() -> AsyncIterator[ReportFetcher]:
    made = ReportFetcher()
    yield made
    await made.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_poll_sends_the_recorded_state(fetcher: ReportFetcher, host: str) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=request.headers.get(RECORDED_HEADER, "nothing"))

    async with pod_that(answer, host) as pod:
        assert await reaches(pod)
        assert await fetcher.fetch(pod, NEVER_S, MOST, '{"anchor": "job/7"}') == b'{"anchor": "job/7"}'
        assert await fetcher.fetch(pod, NEVER_S, MOST) == b"nothing"


async def test_an_error_and_a_flood_are_no_reports(fetcher: ReportFetcher) -> None:
    async def fail(_: web.Request) -> web.Response:
        return web.Response(status=503, text="not yet")

    async def flood(_: web.Request) -> web.Response:
        return web.Response(body=bytes(MOST + 1))

    for handler in (fail, flood):
        async with pod_that(handler) as pod:
            assert await fetcher.fetch(pod, NEVER_S, MOST) is None
    assert await fetcher.fetch(pod_at(2), NEVER_S, MOST) is None, "nothing listens there"


async def test_a_packed_report_is_refused_and_never_unpacked(
    fetcher: ReportFetcher, caplog: pytest.LogCaptureFixture
) -> None:
    encodings = []

    def packed(body: bytes, encoding: str) -> Handler:
        async def answer(request: web.Request) -> web.Response:
            encodings.append(request.headers.get("Accept-Encoding"))
            return web.Response(body=body, headers={"Content-Encoding": encoding})

        return answer

    bomb = gzip.compress(gzip.compress(bytes(64 << 20), 9), 9)
    assert len(bomb) < 1000
    tracemalloc.start()
    try:
        for body, encoding in ((gzip.compress(b"report"), "gzip"), (bomb, "gzip, gzip"), (b"report", "Identity")):
            async with pod_that(packed(body, encoding)) as pod:
                expected = b"report" if encoding == "Identity" else None
                assert await fetcher.fetch(pod, NEVER_S, MOST) == expected
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert encodings == ["identity"] * 3
    assert "p: report rejected: Content-Encoding is 'gzip, gzip', not identity" in caplog.text


class LoopClock:
    """The running loop's time is real, and `passed_s` more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed_s = 0.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: time.monotonic() + self.passed_s)


@pytest.mark.parametrize("pauses", [False, True])
async def test_unresponsive_pod_is_polled_after_a_pause_if_there_are_pauses(*, pauses: bool) -> None:
    held = Held()
    fetcher = ReportFetcher(lambda: 0.0, pauses=pauses)
    async with pod_that(held.answer) as pod:
        assert await fetcher.fetch(pod, 0.05, MOST) is None
        held.release.set()
        assert await fetcher.fetch(pod, NEVER_S, MOST) == (None if pauses else b"held")
    await fetcher.close()


class Held:
    """Answers when it is released. `running` requests wait, and `most` waited at once."""

    def __init__(self) -> None:
        self.running = self.most = 0
        self.release = asyncio.Event()

    async def answer(self, _: web.Request) -> web.Response:
        self.running += 1
        self.most = max(self.most, self.running)
        await self.release.wait()
        self.running -= 1
        return web.Response(text="held")

    async def until(self, count: int) -> None:
        while self.running < count:  # noqa: ASYNC110 -- there is no event to wait for
            await asyncio.sleep(0.01)


async def answer(_: web.Request) -> web.Response:
    return web.Response(text="report")


async def test_polls_in_flight_are_bounded_by_job_and_a_pod_without_a_slot_is_not_unresponsive(
    fetcher: ReportFetcher,
) -> None:
    held = Held()
    async with pod_that(held.answer) as pod:
        polled = [asyncio.create_task(fetcher.fetch(pod, NEVER_S, MOST)) for _ in range(MAX_OF_JOB)]
        await held.until(MAX_OF_JOB)
        late = replace(pod, uid="late")
        assert await fetcher.fetch(late, 0.1, MOST) is None
        polled += [asyncio.create_task(fetcher.fetch(each, NEVER_S, MOST)) for each in (pod, late, late)]
        held.release.set()
        assert set(await asyncio.gather(*polled)) == {b"held"}
    assert held.most == MAX_OF_JOB


async def test_unresponsive_pods_do_not_delay_another_job(fetcher: ReportFetcher) -> None:
    held = Held()
    async with pod_that(held.answer) as unresponsive, pod_that(answer) as healthy:
        pods = [replace(unresponsive, uid=f"s{n}", owner_uid="another") for n in range(200)]
        polled = [asyncio.create_task(fetcher.fetch(pod, NEVER_S, MOST)) for pod in pods]
        await held.until(MAX_OF_JOB)
        assert await fetcher.fetch(healthy, NEVER_S, MOST) == b"report"
        for each in polled:
            each.cancel()
        await asyncio.gather(*polled, return_exceptions=True)


@pytest.mark.parametrize("unresponsive", [False, True])
async def test_jobs_of_one_namespace_do_not_delay_another_namespace(*, unresponsive: bool) -> None:
    now, held = 0.0, Held()
    fetcher = ReportFetcher(lambda: now)
    at_once, of_job = (MAX_UNRESPONSIVE, MAX_UNRESPONSIVE_OF_JOB) if unresponsive else (MAX_IN_FLIGHT, MAX_OF_JOB)

    async def never(_: web.Request) -> web.Response:
        return await asyncio.Future()

    async with pod_that(never) as mute, pod_that(held.answer) as hung, pod_that(answer) as healthy:
        slow = replace(hung, namespace="tenant")
        jobs = range(2 * at_once // of_job)
        pods = [replace(slow, uid=f"{job}-{n}", owner_uid=f"job-{job}") for job in jobs for n in range(of_job)]
        other = replace(healthy, namespace="other", owner_uid="other")
        if unresponsive:
            # Another server takes what is given up here: it may read a request after the client is gone.
            mutes = [replace(pod, port_base=mute.port_base) for pod in (other, *pods)]
            for deadline_s in (0.05, 0.5, 5.0):  # a pod that timed out is not polled again
                assert set(await asyncio.gather(*(fetcher.fetch(pod, deadline_s, MOST) for pod in mutes))) == {None}
            now = NEVER_S
        polled = [asyncio.create_task(fetcher.fetch(pod, NEVER_S, MOST)) for pod in pods]
        await held.until(at_once // 2)
        assert await fetcher.fetch(other, NEVER_S, MOST) == b"report"
        assert held.running == at_once // 2
        held.release.set()
        assert set(await asyncio.gather(*polled)) == {b"held"}
    await fetcher.close()


async def test_unresponsive_pod_is_polled_after_a_pause_and_then_at_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, responds, polls, clock = 0.0, False, 0, LoopClock(monkeypatch)
    limit_s = 10.0
    fetcher = ReportFetcher(lambda: now)

    async def respond(_: web.Request) -> web.Response:
        nonlocal polls
        polls += 1
        if not responds:
            clock.passed_s += limit_s  # who asks has no time left now, and not before it was polls
            await asyncio.Future()
        return web.Response(text="report")

    async with pod_that(respond) as pod:
        assert [await fetcher.fetch(pod, limit_s, MOST) for _ in range(3)] == [None] * 3
        assert polls == 1
        now, responds = 1.0, True
        assert [await fetcher.fetch(pod, NEVER_S, MOST) for _ in range(3)] == [b"report"] * 3
        assert polls == 4
    await fetcher.close()


async def test_pod_is_reached_while_its_process_accepts_hangs_or_has_ended() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=1) as hung:
        pod = pod_at(hung.getsockname()[1])
        assert await reaches(pod)
    assert await reaches(pod), "its kernel refuses"


@pytest.mark.parametrize(
    ("in_a_row", "pods", "seconds"), [(1, 1, 1.0), (2, 1, 2.0), (3, 1, 4.0), (9, 1, LAST_PAUSE_S), (1, 120, 20.0)]
)
def test_pause_grows_with_timeouts_and_with_the_number_of_unresponsive_pods(
    in_a_row: int, pods: int, seconds: float
) -> None:
    assert pause_s(in_a_row, 2.0, pods) == seconds


def test_unresponsive_pods_are_each_polled_within_their_share() -> None:
    now, polls = 0.0, {str(n): 0 for n in range(300)}
    unresponsive = UnresponsivePods(lambda: now)
    for _ in range(600):  # two seconds each: one poll
        polled = [uid for uid in polls if unresponsive.is_due("job", uid)][: 2 * UNRESPONSIVE_POLLS]
        now += 2.0
        for uid in polled:
            polls[uid] += 1
            unresponsive.timed_out("job", uid, 2.0)
    assert min(polls.values()) >= 20
    assert sum(polls.values()) <= (600 + 30) * UNRESPONSIVE_POLLS  # the first poll of each comes without a pause


def test_timeouts_belong_to_a_job_and_end_with_an_answer() -> None:
    unresponsive = UnresponsivePods(lambda: 0.0)
    unresponsive.timed_out("a", "1", 2.0)
    assert ("a", "1") in unresponsive
    assert ("b", "1") not in unresponsive
    assert (unresponsive.is_due("a", "1"), unresponsive.is_due("b", "1")) == (False, True)
    unresponsive.answered("a", "1")
    unresponsive.answered("b", "1")
    assert unresponsive.is_due("a", "1")


def test_pods_without_polls_are_forgotten() -> None:
    now = 0.0
    unresponsive = UnresponsivePods(lambda: now)
    unresponsive.timed_out("a", "1", 2.0)
    now = FORGET_S
    unresponsive.timed_out("b", "1", 2.0)
    assert ("a", "1") not in unresponsive
    assert ("b", "1") in unresponsive
