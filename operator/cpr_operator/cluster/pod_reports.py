"""Asking pods for their reports over HTTP. No answer is an answer: it is never evidence of anything.

Pods are other people's programs. Whatever they answer, or do not answer, costs the operator a bounded amount of memory
and delays no other job: a job has so many polls in flight, a namespace at most half of all, and pods that were silent
wait in a lane of their own.
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
from weakref import WeakValueDictionary

import aiohttp

from cpr_contract import env
from cpr_contract.address import page_url
from cpr_contract.reports import RECORDED_HEADER
from cpr_contract.roster import ROSTER_PAGE, ROSTER_SIGNATURE
from cpr_operator.cluster.protocol import Priority
from cpr_operator.cluster.rate_limiter import RateLimiter
from cpr_operator.cluster.views import PodView

# Decides how long to pause polls of pods that did not answer in time.
#
# Only timeouts count. A refused connection costs nothing, and a starting pod refuses connections until it is ready.


#: Seconds to pause after the first timeout in a row, doubling up to the maximum.
FIRST_PAUSE_S, LAST_PAUSE_S = 1.0, 8.0
#: The mean number of silent pods of one job that are polled at a time, however many there are.
SILENT_POLLS = 12
#: Forget a pod after this many seconds without a poll, because it is probably gone.
FORGET_S = 600.0


def pause_s(in_a_row: int, poll_s: float, silent_pods: int) -> float:
    """Seconds to pause after `in_a_row` timeouts of `poll_s` seconds each.

    The pause grows with the number of silent pods of the job, so that each of them gets its turn.
    """
    doubling = min(FIRST_PAUSE_S * 2.0 ** (in_a_row - 1), LAST_PAUSE_S)
    return max(doubling, silent_pods * poll_s / SILENT_POLLS)


@dataclass(frozen=True, slots=True)
class _Silence:
    in_a_row: int
    poll_s: float
    until: float


class Silences:
    """The pods that did not answer their last poll. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._jobs: dict[str, dict[str, _Silence]] = {}
        self._swept = clock()

    def __contains__(self, pod: tuple[str, str]) -> bool:
        """Whether the pod (job uid, pod uid) did not answer its last poll."""
        job, uid = pod
        return uid in self._jobs.get(job, ())

    def is_due(self, job: str, uid: str) -> bool:
        """Whether to poll the pod now. Always true for a pod that answered its last poll."""
        silent = self._jobs.get(job, {})
        silence = silent.get(uid)
        if silence is None:
            return True
        return self._clock() >= silence.until + pause_s(silence.in_a_row, silence.poll_s, len(silent))

    def was_silent(self, job: str, uid: str, poll_s: float) -> None:
        """Record that the pod did not answer within `poll_s` seconds."""
        now = self._clock()
        if now >= self._swept + FORGET_S:
            self._sweep(now)
        before = self._jobs.get(job, {}).get(uid)
        count = 1 if before is None else before.in_a_row + 1
        self._jobs.setdefault(job, {})[uid] = _Silence(count, poll_s, now)

    def answered(self, job: str, uid: str) -> None:
        """Record that the pod answered, or refused the connection."""
        silent = self._jobs.get(job)
        if silent is not None and silent.pop(uid, None) is not None and not silent:
            del self._jobs[job]

    def _sweep(self, now: float) -> None:
        self._swept = now
        for job, silent in list(self._jobs.items()):
            self._jobs[job] = {uid: each for uid, each in silent.items() if now < each.until + FORGET_S}
        self._jobs = {job: silent for job, silent in self._jobs.items() if silent}


logger = logging.getLogger(__name__)

#: Polls in flight: of all jobs, and of one.
MAX_IN_FLIGHT, MAX_OF_JOB = 256, 32
#: The same of pods that were silent the last time.
MAX_SILENT, MAX_SILENT_OF_JOB = 64, 16
#: What is packed is not unpacked: a few bytes could become gigabytes.
HEADERS = {"Accept-Encoding": "identity"}
#: Deadlines are those of the caller.
UNTIMED = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None)


#: A pod's kernel has so many seconds to answer, and so many tries: one packet may be lost, and the operator itself may
#: not have run for a moment.
CONNECT_S, CONNECT_TRIES = 0.8, 2


async def reaches(pod: PodView) -> bool:
    """Whether the pod's kernel answers a connection, be it with a refusal.

    A kernel does so though the process hangs or the machine has too much to do. Nothing comes from a node without power
    or network. What is the operator's own trouble, such as too many open files, says nothing against the pod.
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


class ReportFetcher:
    """One HTTP client for all pods; made where an event loop runs. `clock` gives seconds.

    pauses: whether a pod that was silent the last time is asked after a pause only.

    Proxies of the environment are not used, no redirect is followed, and no cookie is kept.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, pauses: bool = True) -> None:
        # Polls of one pod are seconds apart, so no connection is kept: there would be one for each job.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        self._client = aiohttp.ClientSession(
            connector=connector,
            headers=HEADERS,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=UNTIMED,
        )
        self._pauses = pauses
        self._silences = Silences(clock)
        self._answering = _Lane(MAX_IN_FLIGHT, MAX_OF_JOB, clock)
        self._silent = _Lane(MAX_SILENT, MAX_SILENT_OF_JOB, clock)

    async def fetch(self, pod: PodView, deadline_s: float, max_bytes: int, recorded: str = "") -> bytes | None:
        """The body of the pod's `/status`; None without an address, without a whole answer, or with a longer one.

        It waits for its turn for `deadline_s` at most, and for the answer as long again. A pod that was silent is not
        asked while its pause lasts, which is None as well. `recorded`: see `Cluster.fetch_report`.
        """
        job = pod.owner_uid
        if not pod.host or (self._pauses and not self._silences.is_due(job, pod.uid)):
            return None
        lane = self._silent if (job, pod.uid) in self._silences else self._answering
        asked, now = False, asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(deadline_s) as limit, lane.slot(job, pod.namespace):
                asked = True
                limit.reschedule(now() + deadline_s)
                answer = await self._get(pod, max_bytes, recorded)
        except TimeoutError:
            if asked:
                self._silences.was_silent(job, pod.uid, deadline_s)
            return None
        except aiohttp.ClientError:
            answer = None
        self._silences.answered(job, pod.uid)
        return answer

    async def send_roster(self, pod: PodView, roster: str, signature: str, deadline_s: float) -> None:
        """Post the roster to the pod, and pass over what does not take it in time: it reads the annotation as well."""
        try:
            async with asyncio.timeout(deadline_s):
                headers = {ROSTER_SIGNATURE: signature}
                async with self._client.post(_url(pod, ROSTER_PAGE), data=roster.encode(), headers=headers) as answer:
                    if answer.status != HTTPStatus.NO_CONTENT:
                        logger.info("%s does not take a roster that is sent: %d", pod.name, answer.status)
        except (TimeoutError, aiohttp.ClientError) as error:
            logger.info("%s does not take a roster that is sent: %r", pod.name, error)

    async def _get(self, pod: PodView, max_bytes: int, recorded: str) -> bytes | None:
        headers = {RECORDED_HEADER: recorded} if recorded else None
        async with self._client.get(_url(pod, "/status"), headers=headers, allow_redirects=False) as response:
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

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()


def _url(pod: PodView, page: str) -> str:
    return page_url(pod.host, pod.port_base + env.HTTP_PORT, page)


class _Lane:
    """So many at once, so many of one job, and of a namespace what a `RateLimiter` lets it hold."""

    def __init__(self, at_once: int, of_job: int, clock: Callable[[], float]) -> None:
        self._all = RateLimiter(math.inf, at_once, clock)
        self._of_job = of_job
        self._jobs: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def slot(self, job: str, namespace: str) -> AsyncIterator[None]:
        """A place in the lane. First the job's own: those who wait for it take no place of others."""
        own = self._jobs.setdefault(job, asyncio.Semaphore(self._of_job))
        async with own, self._all.place(Priority.RECOVERY, namespace):
            yield
