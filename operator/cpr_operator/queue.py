"""The reconcile queue: one pass at a time for each job.

A pass runs when an event wakes the job, when the last pass asked for it, and at regular intervals, because a watch may
lose events.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable

from cpr_operator.cluster.protocol import ClusterError
from cpr_operator.cluster.rate_limiter import backoff_s

logger = logging.getLogger(__name__)

#: Without an event, the next pass runs after a random number of seconds in this range.
REGULAR_S = (30.0, 60.0)
#: Backoff after a failed pass: doubles from the first to the last, with jitter.
FIRST_BACKOFF_S, LAST_BACKOFF_S = 0.5, 60.0
#: Seconds that a pass waits for further pod events, because they come in bursts.
DEBOUNCE_S = 0.2
#: Maximum concurrent first passes; more would time out report requests.
FIRST_AT_ONCE = 64


def retry_after_s(failures: int, rng: random.Random) -> float:
    """Seconds to wait after `failures` failed passes in a row: random, below a bound that doubles."""
    return rng.uniform(FIRST_BACKOFF_S / 2, backoff_s(failures, FIRST_BACKOFF_S, LAST_BACKOFF_S))


class QueuedJob:
    """Runs `run_pass` until it returns None, which means that nothing is left to do for this job.

    Otherwise a pass returns the number of seconds after which the next one must run at the latest.
    """

    def __init__(self, name: str, run_pass: Callable[[], Awaitable[float | None]], rng: random.Random) -> None:
        self._name = name
        self._run_pass = run_pass
        self._rng = rng
        self._failures = 0
        self._due = float("inf")
        self._woken = asyncio.Event()
        self.started = False

    def wake(self, delay_s: float = 0.0) -> None:
        """Run a pass after `delay_s` seconds at the latest. A pass in progress is followed by another."""
        self._due = min(self._due, _now() + delay_s)
        self._woken.set()

    async def run(self) -> None:
        """Run passes; the first one waits for `wake`."""
        while True:
            await self._wait_until_due()
            self.started, self._due = True, float("inf")
            wait_s = await self._attempt()
            if (task := asyncio.current_task()) is not None and task.cancelling():
                return  # a cancelled pass may still end with another error
            if wait_s is not None:
                self.wake(wait_s)
            elif self._due == float("inf"):
                return

    async def _attempt(self) -> float | None:
        try:
            requested_s = await self._run_pass()
        except ClusterError as error:
            logger.warning("%s: pass failed: %s: %s", self._name, type(error).__name__, error)
        except Exception:  # an error in one job must not end the passes over other jobs
            logger.exception("%s: pass failed", self._name)
        else:
            self._failures = 0
            return None if requested_s is None else min(requested_s, self._rng.uniform(*REGULAR_S))
        self._failures += 1
        return retry_after_s(self._failures, self._rng)

    async def _wait_until_due(self) -> None:
        while (left_s := self._due - _now()) > 0:
            self._woken.clear()
            try:
                async with asyncio.timeout(left_s if left_s < float("inf") else None):
                    await self._woken.wait()
            except TimeoutError:
                return


class ReconcileQueue:
    """All jobs that need passes, by namespace and name. Passes over different jobs run concurrently."""

    def __init__(self, run_pass: Callable[[str, str], Awaitable[float | None]], rng: random.Random) -> None:
        self._run_pass = run_pass
        self._rng = rng
        self._jobs: dict[tuple[str, str], QueuedJob] = {}
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._listed: deque[tuple[str, str]] = deque()
        self._first: set[tuple[str, str]] = set()
        self._paused = False
        self._ended = False

    def pause_first_passes(self) -> None:
        """Defer the first passes of listed jobs until `resume_first_passes`, except those of urgent jobs."""
        self._paused = True

    def resume_first_passes(self) -> None:
        """Begin the first passes that `pause_first_passes` deferred."""
        self._paused = False
        self._begin()

    def wake(self, namespace: str, name: str, delay_s: float = 0.0) -> None:
        """Run a pass within `delay_s` seconds, because the job changed."""
        if not self._ended:
            self._job(namespace, name).wake(delay_s)

    def schedule(self, namespace: str, name: str, *, urgent: bool) -> None:
        """Schedule a pass for a listed job.

        The first passes after the operator's start follow each other, but an urgent job does not wait.
        Later passes are debounced only.
        """
        if self._ended:
            return
        if urgent or self.started(namespace, name):
            self._job(namespace, name).wake(DEBOUNCE_S)
        else:
            self._listed.append((namespace, name))
            self._begin()

    def started(self, namespace: str, name: str) -> bool:
        """Return True once the job's first pass has begun."""
        job = self._jobs.get((namespace, name))
        return job is not None and job.started

    def end(self) -> None:
        """Cancel all passes, which is safe at any point, and start no more."""
        self._ended = True
        self._listed.clear()
        self._cancel()

    async def close(self) -> None:
        """Cancel all passes, and return when they have ended."""
        await asyncio.gather(*self._cancel(), return_exceptions=True)

    def _begin(self) -> None:
        """Begin first passes of listed jobs, at most `FIRST_AT_ONCE` at a time."""
        while self._listed and len(self._first) < FIRST_AT_ONCE and not self._paused:
            key = self._listed.popleft()
            if not self.started(*key):
                self._first.add(key)
                self._job(*key).wake()

    def _job(self, namespace: str, name: str) -> QueuedJob:
        key = (namespace, name)
        if key not in self._jobs:
            self._jobs[key] = QueuedJob(f"{namespace}/{name}", lambda: self._pass(key), self._rng)
            self._tasks[key] = asyncio.create_task(self._run(key), name=f"reconcile {namespace}/{name}")
        return self._jobs[key]

    async def _run(self, key: tuple[str, str]) -> None:
        try:
            await self._jobs[key].run()
        finally:
            del self._jobs[key], self._tasks[key]

    async def _pass(self, key: tuple[str, str]) -> float | None:
        try:
            return await self._run_pass(*key)
        finally:
            self._first.discard(key)
            self._begin()

    def _cancel(self) -> list[asyncio.Task[None]]:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        return tasks


def _now() -> float:
    return asyncio.get_running_loop().time()
