from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpr_operator.cluster.protocol import UnavailableError
from cpr_operator.worker import (
    DEBOUNCE_S,
    FIRST_AT_ONCE,
    FIRST_BACKOFF_S,
    LAST_BACKOFF_S,
    Worker,
    Workers,
    backoff_s,
)


class Passes:
    """A pass that plays a script: seconds to wait, None, or an error to raise; at its end it wants no more."""

    def __init__(self, *script: float | Exception | None) -> None:
        self._script = list(script)
        self.count = 0
        self.at_once = 0
        self.hook: Callable[[], Awaitable[None]] | None = None

    async def run(self) -> float | None:
        self.count += 1
        self.at_once += 1
        assert self.at_once == 1, "two passes of one job at a time"
        await asyncio.sleep(0)
        if self.hook is not None:
            await self.hook()
        self.at_once -= 1
        step = self._script.pop(0) if self._script else None
        if isinstance(step, Exception):
            raise step
        return step


class Quick(random.Random):
    """Draws the least of every range, so that tests wait for nothing."""

    def uniform(self, a: float, b: float) -> float:
        return 0.0


class Late(random.Random):
    """Draws the most of every range, so that no regular pass comes within a test."""

    def uniform(self, a: float, b: float) -> float:
        return b


def worker(passes: Passes) -> Worker:
    return Worker("j", passes.run, Quick())


@given(st.integers(1, 200), st.integers())
def test_backoff_grows_and_is_bounded(failures: int, seed: int) -> None:
    assert FIRST_BACKOFF_S / 2 <= backoff_s(failures, random.Random(seed)) <= LAST_BACKOFF_S


async def test_nothing_runs_before_it_is_woken() -> None:
    passes = Passes()
    task = asyncio.create_task(worker(passes).run())
    await asyncio.sleep(0.02)
    assert passes.count == 0
    task.cancel()


async def test_passes_follow_until_one_wants_no_more() -> None:
    passes = Passes(0.0, 0.01, None)
    running = worker(passes)
    running.wake()
    async with asyncio.timeout(10):
        await running.run()
    assert passes.count == 3


async def test_errors_are_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    passes = Passes(UnavailableError("no answer"), RuntimeError("a bug"), None)
    running = worker(passes)
    running.wake()
    async with asyncio.timeout(10):
        await running.run()
    assert passes.count == 3
    assert "no answer" in caplog.text
    assert "a bug" in caplog.text


async def test_what_happens_during_a_pass_is_followed_by_another() -> None:
    passes = Passes()
    running = worker(passes)

    async def wake_once() -> None:
        if passes.count == 1:
            running.wake()

    passes.hook = wake_once
    running.wake()
    async with asyncio.timeout(10):
        await running.run()
    assert passes.count == 2


async def test_many_events_are_one_pass() -> None:
    passes = Passes()
    running = worker(passes)
    for _ in range(100):
        running.wake(0.01)
    async with asyncio.timeout(10):
        await running.run()
    assert passes.count == 1


async def test_an_earlier_wake_up_wins_over_a_later_one() -> None:
    passes = Passes()
    running = worker(passes)
    running.wake(3600)
    task = asyncio.create_task(running.run())
    await asyncio.sleep(0)
    running.wake(0)
    async with asyncio.timeout(10):
        await task
    assert passes.count == 1


async def test_each_job_has_its_own_worker_and_a_finished_one_starts_again() -> None:
    seen: list[tuple[str, str]] = []

    async def run_pass(namespace: str, name: str) -> None:
        seen.append((namespace, name))

    workers = Workers(run_pass, Quick())
    for namespace, name in (("a", "x"), ("b", "x"), ("a", "x")):
        workers.wake(namespace, name)
        await asyncio.sleep(0.02)
    assert seen == [("a", "x"), ("b", "x"), ("a", "x")]
    await workers.close()


async def test_at_the_end_passes_are_cancelled_and_none_is_begun() -> None:
    begun: list[str] = []

    async def hang(_: str, name: str) -> None:
        begun.append(name)
        await asyncio.Event().wait()

    workers = Workers(hang, Quick())
    for name in ("x", "y"):
        workers.wake("n", name)
    await asyncio.sleep(0.02)
    hanging = {task for task in asyncio.all_tasks() if task.get_name().startswith("worker ")}
    workers.end()
    workers.wake("n", "z")
    workers.schedule("n", "z", urgent=True)
    await asyncio.wait(hanging, timeout=20)
    assert all(task.cancelled() for task in hanging)
    await asyncio.sleep(2 * DEBOUNCE_S)
    assert begun == ["x", "y"]


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

    workers = Workers(fail, Quick())
    workers.wake("n", "x")
    await asyncio.sleep(0.02)
    async with asyncio.timeout(20):
        await workers.close()
    assert begun == 1


async def test_first_passes_of_listed_jobs_follow_each_other_and_urgent_jobs_do_not_wait() -> None:
    """Another operator takes over, and a pod has died meanwhile: nothing in the listing shows it."""
    begun: list[str] = []
    going_on = asyncio.Event()

    async def run_pass(namespace: str, name: str) -> float:
        begun.append(name)
        await going_on.wait()
        return 3600.0

    async def until(count: int) -> None:
        async with asyncio.timeout(10):
            while len(begun) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    workers, names = Workers(run_pass, Late()), [str(number) for number in range(3 * FIRST_AT_ONCE)]
    for name in names:
        workers.schedule("n", name, urgent=False)
    await until(FIRST_AT_ONCE)
    await asyncio.sleep(2 * DEBOUNCE_S)
    assert begun == names[:FIRST_AT_ONCE]
    assert not workers.started("n", names[-1])
    assert not workers.started("n", "unknown")
    workers.schedule("n", "troubled", urgent=True)
    workers.wake("n", names[-1])
    await until(FIRST_AT_ONCE + 2)
    assert workers.started("n", "troubled")
    going_on.set()
    await until(len(names) + 1)
    await asyncio.sleep(2 * DEBOUNCE_S)
    assert sorted(begun) == sorted([*names, "troubled"])
    await workers.close()


async def test_a_job_that_was_listed_and_is_gone_leaves_its_place_to_another() -> None:
    begun: list[str] = []

    async def run_pass(namespace: str, name: str) -> None:
        begun.append(name)
        if name.startswith("bad"):
            raise UnavailableError("the API server does not answer")

    workers = Workers(run_pass, Late())
    for number in range(FIRST_AT_ONCE):
        for name in ("gone", "bad"):
            workers.schedule("n", f"{name}-{number}", urgent=False)
    workers.schedule("n", "last", urgent=False)
    async with asyncio.timeout(10):
        while "last" not in begun:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await workers.close()


async def test_first_passes_that_are_held_come_after_the_release_and_urgent_ones_at_once() -> None:
    seen: list[str] = []

    async def run_pass(namespace: str, name: str) -> float:
        seen.append(name)
        return 3600.0

    async def saw(*names: str) -> None:
        async with asyncio.timeout(10):
            while seen != list(names):  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    workers = Workers(run_pass, Late())
    workers.hold()
    for _ in range(2):
        workers.schedule("n", "calm", urgent=False)
    workers.schedule("n", "troubled", urgent=True)
    await saw("troubled")
    workers.schedule("n", "troubled", urgent=False)
    await saw("troubled", "troubled")
    workers.wake("n", "edited")
    await saw("troubled", "troubled", "edited")
    workers.release()
    await saw("troubled", "troubled", "edited", "calm")
    workers.schedule("n", "late", urgent=False)
    await saw("troubled", "troubled", "edited", "calm", "late")
    workers.release()
    await asyncio.sleep(2 * DEBOUNCE_S)
    assert len(seen) == 5
    await workers.close()
