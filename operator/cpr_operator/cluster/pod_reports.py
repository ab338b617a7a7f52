"""Polls pods for their reports over HTTP. A missing answer is never evidence of a failure.

Pods are other people's programs. Any answer, or none, costs the operator a bounded amount of memory and delays no
other job: polls in flight are limited for a job, and for a namespace to half of all, and pods that timed out before
have slots of their own.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from weakref import WeakValueDictionary

import aiohttp
from yarl import URL

from cpr_contract import env
from cpr_contract.file_uris import page_url
from cpr_contract.reports import RECORDED_HEADER
from cpr_contract.roster import ROSTER_PAGE, ROSTER_SIGNATURE
from cpr_operator.cluster.certificates import PodTLS
from cpr_operator.cluster.protocol import Priority
from cpr_operator.cluster.rate_limiter import RateLimiter, backoff_s
from cpr_operator.cluster.views import PodView

logger = logging.getLogger(__name__)

#: Seconds to pause after the first timeout in a row, doubling up to the maximum.
FIRST_PAUSE_S, LAST_PAUSE_S = 1.0, 8.0
#: The mean number of concurrent polls of unresponsive pods of one job.
UNRESPONSIVE_POLLS = 12
#: Seconds without a poll after which a pod is forgotten: it is probably deleted.
FORGET_S = 600.0
#: Polls in flight: of all jobs, and of one.
MAX_IN_FLIGHT, MAX_OF_JOB = 256, 32
#: The same of pods that did not answer their last poll.
MAX_UNRESPONSIVE, MAX_UNRESPONSIVE_OF_JOB = 64, 16
#: Pods with a remembered failure of TLS: each reason is logged once.
MAX_REFUSALS = 4096
#: No compression: a few bytes could decompress to gigabytes.
HEADERS = {"Accept-Encoding": "identity"}
#: The caller sets the deadlines.
UNTIMED = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None)
#: Seconds for a pod's kernel to answer, and the number of attempts: a packet may be lost, or the operator paused.
CONNECT_S, CONNECT_TRIES = 0.8, 2


class ReportFetcher:
    """One HTTP client for all pods, without proxies, redirects and cookies; made where an event loop runs.

    pauses: whether a pod that did not answer is polled again only after a pause.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, pauses: bool = True) -> None:
        # Polls of one pod are seconds apart, so no connection stays open: there would be one for each job.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        self._client = aiohttp.ClientSession(
            connector=connector,
            headers=HEADERS,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=UNTIMED,
        )
        self._pauses = pauses
        self._refusals: dict[str, str] = {}  # the last reason by uid of the pod
        self._unresponsive = UnresponsivePods(clock)
        self._slots = _Slots(MAX_IN_FLIGHT, MAX_OF_JOB, clock)
        self._unresponsive_slots = _Slots(MAX_UNRESPONSIVE, MAX_UNRESPONSIVE_OF_JOB, clock)

    async def fetch(
        self, pod: PodView, deadline_s: float, max_bytes: int, recorded: str = "", tls: PodTLS | None = None
    ) -> bytes | None:
        """The body of the pod's `/status`; None without an address, without a whole answer, or with a longer one.

        Waits at most `deadline_s` for a slot, and the same time for the answer. A pod that did not answer its last
        poll is not polled during its pause: also None. `recorded`, `tls`: see `Cluster.fetch_report`.
        """
        job = pod.owner_uid
        if not pod.host or (self._pauses and not self._unresponsive.is_due(job, pod.uid)):
            return None
        slots = self._unresponsive_slots if (job, pod.uid) in self._unresponsive else self._slots
        began, now = False, asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(deadline_s) as limit, slots.slot(job, pod.namespace):
                began = True
                limit.reschedule(now() + deadline_s)
                answer = await self._get(pod, max_bytes, recorded, tls)
        except TimeoutError:
            if began:
                self._unresponsive.timed_out(job, pod.uid, deadline_s)
            return None
        except aiohttp.ClientError as error:
            answer = None
            if isinstance(error, aiohttp.ClientSSLError):
                self._log_refusal(pod, str(error))
        self._unresponsive.answered(job, pod.uid)
        return answer

    async def send_roster(
        self, pod: PodView, roster: str, signature: str, deadline_s: float, tls: PodTLS | None = None
    ) -> None:
        """Post the roster to the pod. Failures are logged alone: the pod reads the annotation as well."""
        try:
            async with asyncio.timeout(deadline_s):
                headers = {ROSTER_SIGNATURE: signature}
                sending = self._client.post(
                    _url(pod, ROSTER_PAGE, tls), data=roster.encode(), headers=headers, **_connection(tls)
                )
                async with sending as answer:
                    if answer.status != HTTPStatus.NO_CONTENT:
                        logger.info("%s does not take a roster that is sent: %d", pod.name, answer.status)
        except (TimeoutError, aiohttp.ClientError) as error:
            logger.info("%s does not take a roster that is sent: %r", pod.name, error)

    def _log_refusal(self, pod: PodView, why: str) -> None:
        """Log why TLS failed, once for each pod and reason."""
        if len(self._refusals) >= MAX_REFUSALS:
            self._refusals.clear()
        if self._refusals.get(pod.uid) != why:
            self._refusals[pod.uid] = why
            logger.warning("%s: no report over TLS: %s", pod.name, why)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    async def _get(self, pod: PodView, max_bytes: int, recorded: str, tls: PodTLS | None) -> bytes | None:
        headers = {RECORDED_HEADER: recorded} if recorded else None
        getting = self._client.get(
            _url(pod, "/status", tls), headers=headers, allow_redirects=False, **_connection(tls)
        )
        async with getting as response:
            if response.status != HTTPStatus.OK:
                return None
            encoding = response.headers.get("Content-Encoding", "identity")
            if encoding.strip().lower() != "identity":
                logger.warning("%s: report rejected: Content-Encoding is %.80r, not identity", pod.name, encoding)
                return None
            body = bytearray()
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > max_bytes:
                    logger.warning("%s: report rejected: longer than %d bytes", pod.name, max_bytes)
                    return None
            return bytes(body)


async def reaches(pod: PodView) -> bool:
    """Return True if the pod's kernel answers a connection, also with a refusal.

    A kernel answers even if the process hangs or the machine is overloaded; a node without power or network does not.
    An error of the operator itself, such as too many open files, is not evidence against the pod.
    """
    for _ in range(CONNECT_TRIES):
        try:
            async with asyncio.timeout(CONNECT_S):
                _, writer = await asyncio.open_connection(pod.host, pod.port_base + env.HTTP_PORT)
        except OSError as error:
            if not isinstance(error, TimeoutError) and error.errno != errno.EHOSTUNREACH:
                return True
        else:
            writer.close()
            return True
    return False


@dataclass(frozen=True, slots=True)
class _Timeouts:
    """Timeouts in a row of one pod, the seconds of the last poll, and the time of its end."""

    in_a_row: int
    poll_s: float
    at: float


class UnresponsivePods:
    """The pods that did not answer their last poll, with the pauses between their polls. `clock` returns seconds.

    Only timeouts count. A refused connection costs nothing, and a starting pod refuses connections until it is ready.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._jobs: dict[str, dict[str, _Timeouts]] = {}
        self._swept = clock()

    def __contains__(self, pod: tuple[str, str]) -> bool:
        """Return True if the pod (job uid, pod uid) did not answer its last poll."""
        job, uid = pod
        return uid in self._jobs.get(job, ())

    def is_due(self, job: str, uid: str) -> bool:
        """Return True if the pod may be polled now. Always true for a pod that answered its last poll."""
        pods = self._jobs.get(job, {})
        timeouts = pods.get(uid)
        if timeouts is None:
            return True
        return self._clock() >= timeouts.at + pause_s(timeouts.in_a_row, timeouts.poll_s, len(pods))

    def timed_out(self, job: str, uid: str, poll_s: float) -> None:
        """Record that the pod did not answer within `poll_s` seconds."""
        now = self._clock()
        if now >= self._swept + FORGET_S:
            self._swept = now
            recent = {
                other: {pod: each for pod, each in pods.items() if now < each.at + FORGET_S}
                for other, pods in self._jobs.items()
            }
            self._jobs = {other: pods for other, pods in recent.items() if pods}
        before = self._jobs.get(job, {}).get(uid)
        count = 1 if before is None else before.in_a_row + 1
        self._jobs.setdefault(job, {})[uid] = _Timeouts(count, poll_s, now)

    def answered(self, job: str, uid: str) -> None:
        """Record that the pod answered, or refused the connection."""
        pods = self._jobs.get(job)
        if pods is not None and pods.pop(uid, None) is not None and not pods:
            del self._jobs[job]


def pause_s(in_a_row: int, poll_s: float, unresponsive: int) -> float:
    """Seconds to pause after `in_a_row` timeouts of `poll_s` seconds each.

    The pause grows with the number of unresponsive pods of the job, so that each of them is polled in time.
    """
    return max(backoff_s(in_a_row - 1, FIRST_PAUSE_S, LAST_PAUSE_S), unresponsive * poll_s / UNRESPONSIVE_POLLS)


class _Slots:
    """Limits polls in flight: of all jobs, of one job, and of a namespace as a `RateLimiter` does."""

    def __init__(self, at_once: int, of_job: int, clock: Callable[[], float]) -> None:
        self._all = RateLimiter(math.inf, at_once, clock)
        self._of_job = of_job
        self._jobs: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def slot(self, job: str, namespace: str) -> AsyncIterator[None]:
        """Hold a slot of the job, then one of all: a poll that waits for its job's slot takes none of others."""
        own = self._jobs.setdefault(job, asyncio.Semaphore(self._of_job))
        async with own, self._all.slot(Priority.RECOVERY, namespace):
            yield


def _url(pod: PodView, page: str, tls: PodTLS | None) -> URL:
    return URL(page_url(pod.host, pod.port_base + env.HTTP_PORT, page)).with_scheme("http" if tls is None else "https")


def _connection(tls: PodTLS | None) -> dict[str, Any]:
    """The arguments of a request: a pod has no name in DNS, so the name in its certificate is stated."""
    return {} if tls is None else {"ssl": tls.context, "server_hostname": tls.name}
