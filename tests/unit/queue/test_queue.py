"""When a job's passes run, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from cpr_operator.cluster.protocol import UnavailableError
from cpr_operator.queue import (
    DEBOUNCE_S,
    FIRST_AT_ONCE,
    FIRST_BACKOFF_S,
    LAST_BACKOFF_S,
    REGULAR_S,
    QueuedJob,
    ReconcileQueue,
)
from simulation.control_plane.clock import in_virtual_time, now

#: Longer than any regular interval.
LONG_S = 3600.0


class Passes:
    """Passes that play a script: seconds to wait, None, or an error to raise; at its end they want no more."""

    def __init__(self, *script: float | Exception | None) -> None:
        self._script = list(script)
        self._under_way = False
        self.times: list[float] = []
        self.hook: Callable[[], Awaitable[None]] | None = None

    async def run(self) -> float | None:
        assert not self._under_way, "two passes of one job at a time"
        self._under_way = True
        self.times.append(now())
        await asyncio.sleep(0)
        if self.hook is not None:
            await self.hook()
        self._under_way = False
        step = self._script.pop(0) if self._script else None
        if isinstance(step, Exception):
            raise step
        return step


class Jobs:
    """The queue of many jobs, with records of their passes, which request the next one after a long time."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.queue = ReconcileQueue(self._pass, random.Random(1))
        self.going_on = asyncio.Event()
        self.going_on.set()

    async def _pass(self, namespace: str, name: str) -> float:
        self.begun.append(name)
        await self.going_on.wait()
        return LONG_S

    async def settle(self) -> list[str]:
        """The passes that began until everything is debounced."""
        begun = len(self.begun)
        await asyncio.sleep(2 * DEBOUNCE_S)
        return self.begun[begun:]


def worker(passes: Passes) -> QueuedJob:
    return QueuedJob("j", passes.run, random.Random(1))


@in_virtual_time
async def test_passes_begin_when_woken_and_follow_as_requested_and_regularly() -> None:
    passes = Passes(0.0, 5.0, LONG_S, None)
    running = worker(passes)
    task = asyncio.create_task(running.run())
    await asyncio.sleep(100)
    assert passes.times == []
    for _ in range(100):
        running.wake(0.01)
    await task
    first, second, third, fourth = passes.times
    assert (first, second, third) == pytest.approx((100.01, 100.01, 105.01))
    assert REGULAR_S[0] <= fourth - third <= REGULAR_S[1]


@in_virtual_time
async def test_failed_pass_is_retried_after_a_backoff_that_success_resets(caplog: pytest.LogCaptureFixture) -> None:
    passes = Passes(*[UnavailableError("no answer")] * 12, RuntimeError("a bug"), 0.0, UnavailableError("again"), None)
    running = worker(passes)
    running.wake()
    await running.run()
    pauses = [later - earlier for earlier, later in zip(passes.times, passes.times[1:], strict=False)]
    assert max(pauses[:13]) > LAST_BACKOFF_S / 4
    assert pauses[13] == 0.0
    assert FIRST_BACKOFF_S / 2 <= pauses[14] <= 2 * FIRST_BACKOFF_S
    assert "no answer" in caplog.text
    assert "a bug" in caplog.text


@in_virtual_time
async def test_a_wake_up_during_a_pass_is_followed_by_another() -> None:
    passes = Passes()
    running = worker(passes)

    async def wake_once() -> None:
        if len(passes.times) == 1:
            running.wake()

    passes.hook = wake_once
    running.wake()
    await running.run()
    assert passes.times == [0.0, 0.0]


@in_virtual_time
async def test_an_earlier_wake_up_wins_over_a_later_one() -> None:
    passes = Passes()
    running = worker(passes)
    running.wake(LONG_S)
    task = asyncio.create_task(running.run())
    await asyncio.sleep(1)
    running.wake(1)
    await task
    assert passes.times == [2.0]


@in_virtual_time
async def test_each_job_has_its_own_passes_and_a_finished_one_restarts() -> None:
    seen: list[tuple[str, str]] = []

    async def run_pass(namespace: str, name: str) -> None:
        seen.append((namespace, name))

    queue = ReconcileQueue(run_pass, random.Random(1))
    for namespace, name in (("a", "x"), ("b", "x"), ("a", "x")):
        queue.wake(namespace, name)
        await asyncio.sleep(1)
    assert seen == [("a", "x"), ("b", "x"), ("a", "x")]


@in_virtual_time
async def test_at_the_end_passes_are_cancelled_and_none_is_begun() -> None:
    jobs = Jobs()
    jobs.going_on.clear()
    for name in ("x", "y"):
        jobs.queue.wake("n", name)
    await jobs.settle()
    hanging = {task for task in asyncio.all_tasks() if task.get_name().startswith("reconcile ")}
    jobs.queue.end()
    jobs.queue.wake("n", "z")
    jobs.queue.schedule("n", "z", urgent=True)
    await asyncio.wait(hanging)
    assert all(task.cancelled() for task in hanging)
    await jobs.settle()
    assert jobs.begun == ["x", "y"]


@in_virtual_time
async def test_a_pass_that_ends_with_its_own_error_when_cancelled_is_the_last() -> None:
    """A group of requests raises the error of one of them, though it was cancelled at the same time."""
    begun = 0

    async def fail(*_: str) -> None:
        nonlocal begun
        begun += 1
        if begun > 1:
            return
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            raise UnavailableError("the API server does not answer") from error

    queue = ReconcileQueue(fail, random.Random(1))
    queue.wake("n", "x")
    await asyncio.sleep(1)
    await queue.close()
    assert begun == 1


@in_virtual_time
async def test_first_passes_of_listed_jobs_follow_each_other_and_urgent_jobs_do_not_wait() -> None:
    """Another operator takes over, and a pod has died meanwhile: nothing in the listing shows it."""
    jobs, names = Jobs(), [str(number) for number in range(3 * FIRST_AT_ONCE)]
    jobs.going_on.clear()
    for name in names:
        jobs.queue.schedule("n", name, urgent=False)
    assert await jobs.settle() == names[:FIRST_AT_ONCE]
    assert not jobs.queue.started("n", names[-1])
    assert not jobs.queue.started("n", "unknown")
    jobs.queue.schedule("n", "troubled", urgent=True)
    jobs.queue.wake("n", names[-1])
    assert sorted(await jobs.settle()) == sorted(["troubled", names[-1]])
    assert jobs.queue.started("n", "troubled")
    jobs.going_on.set()
    await jobs.settle()
    assert sorted(jobs.begun) == sorted([*names, "troubled"])


@in_virtual_time
async def test_deleted_listed_job_leaves_its_slot_to_another() -> None:
    begun: list[str] = []

    async def run_pass(namespace: str, name: str) -> None:
        begun.append(name)
        if name.startswith("bad"):
            raise UnavailableError("the API server does not answer")

    queue = ReconcileQueue(run_pass, random.Random(1))
    for number in range(FIRST_AT_ONCE):
        for name in ("gone", "bad"):
            queue.schedule("n", f"{name}-{number}", urgent=False)
    queue.schedule("n", "last", urgent=False)
    await asyncio.sleep(DEBOUNCE_S)
    assert "last" in begun


@in_virtual_time
async def test_paused_first_passes_begin_on_resume_and_urgent_ones_at_once() -> None:
    jobs = Jobs()
    queue = jobs.queue
    queue.pause_first_passes()
    for _ in range(2):
        queue.schedule("n", "calm", urgent=False)
    queue.schedule("n", "troubled", urgent=True)
    assert await jobs.settle() == ["troubled"]
    queue.schedule("n", "troubled", urgent=False)
    assert await jobs.settle() == ["troubled"]
    queue.wake("n", "edited")
    assert await jobs.settle() == ["edited"]
    queue.resume_first_passes()
    assert await jobs.settle() == ["calm"]
    queue.schedule("n", "late", urgent=False)
    assert await jobs.settle() == ["late"]
    queue.resume_first_passes()
    assert await jobs.settle() == []
