from __future__ import annotations

import asyncio
import math

import pytest

from cpr_operator.cluster.protocol import BusyError, Priority
from cpr_operator.cluster.rate_limiter import RateLimiter
from simulation.control_plane.clock import now, run

#: More than are ever under way, and more than ever begin in a second.
MANY = 1000


def taken(
    *priorities: Priority, per_second: float = 10, at_once: int = MANY, answer_s: float = 0.0, after_s: float = 0.0
) -> list[tuple[float, int]]:
    """When each of these requests, all made together, had its turn: seconds and its number, in order."""
    begun: list[tuple[float, int]] = []

    async def main() -> None:
        limiter = RateLimiter(per_second, at_once, now)
        await asyncio.sleep(after_s)

        async def one(number: int, priority: Priority) -> None:
            async with limiter.slot(priority, ""):
                begun.append((round(now() - after_s, 3), number))
                await asyncio.sleep(answer_s)

        await asyncio.gather(*(one(*each) for each in enumerate(priorities)))

    run(main())
    return begun


@pytest.mark.parametrize("quiet_s", [0.0, 1000.0])
def test_burst_passes_and_later_requests_wait(quiet_s: float) -> None:
    begun = taken(*[Priority.START] * 13, after_s=quiet_s)
    assert [when for when, _ in begun] == [0.0] * 10 + [0.1, 0.2, 0.3]
    assert [number for _, number in begun] == list(range(13))


def test_the_most_urgent_goes_first_and_equals_in_their_order() -> None:
    first = [Priority.BEGIN] * 10
    begun = taken(*first, Priority.BEGIN, Priority.ROSTER, Priority.START, Priority.RECOVERY, Priority.ROSTER)
    assert [number for _, number in begun[10:]] == [13, 11, 14, 12, 10]


@pytest.mark.parametrize("answer_s", [0.5, 30.0])
def test_requests_in_flight_are_limited_with_slow_answers(answer_s: float) -> None:
    waits = (Priority.BEGIN, Priority.ROSTER, Priority.START, Priority.RECOVERY)
    begun = taken(*[Priority.START] * 3, *waits, per_second=MANY, at_once=3, answer_s=answer_s)
    assert [when for when, _ in begun] == [0.0] * 3 + [answer_s] * 3 + [2 * answer_s]
    assert [number for _, number in begun[3:]] == [6, 4, 5, 3]


def test_infinite_rate_limits_only_requests_in_flight() -> None:
    begun = taken(*[Priority.RECOVERY] * 7, per_second=math.inf, at_once=3, answer_s=1.0)
    assert [when for when, _ in begun] == [0.0] * 3 + [1.0] * 3 + [2.0]


async def request(limiter: RateLimiter, priority: Priority, answer_s: float = 0.0, namespace: str = "") -> None:
    async with limiter.slot(priority, namespace):
        await asyncio.sleep(answer_s)


def test_a_regular_request_leaves_half_of_the_tokens_and_never_waits() -> None:
    async def main() -> None:
        limiter = RateLimiter(10, MANY, now)
        for _ in range(6):
            await request(limiter, Priority.REGULAR)
        with pytest.raises(BusyError):
            await request(limiter, Priority.REGULAR)
        for _ in range(4):
            await request(limiter, Priority.RECOVERY)
        assert now() == 0.0
        await asyncio.sleep(0.5)
        waiting = asyncio.gather(*(request(limiter, Priority.BEGIN) for _ in range(6)))
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await request(limiter, Priority.REGULAR)
        await waiting

    run(main())


def test_regular_request_leaves_half_of_the_slots() -> None:
    async def main() -> None:
        limiter = RateLimiter(MANY, 4, now)
        under_way = [asyncio.ensure_future(request(limiter, Priority.REGULAR, 1.0)) for _ in range(2)]
        await asyncio.sleep(0.5)
        with pytest.raises(BusyError):
            await request(limiter, Priority.REGULAR)
        await asyncio.gather(*(request(limiter, Priority.RECOVERY) for _ in range(2)))
        assert now() == 0.5
        await asyncio.gather(*under_way)
        await request(limiter, Priority.REGULAR)

    run(main())


def test_failed_request_gives_its_slot_back() -> None:
    async def main() -> None:
        limiter = RateLimiter(MANY, 1, now)
        with pytest.raises(ValueError, match="no answer"):
            async with limiter.slot(Priority.START, ""):
                raise ValueError("no answer")
        await request(limiter, Priority.START)

    run(main())


def test_cancelled_caller_takes_no_token() -> None:
    async def main() -> None:
        limiter = RateLimiter(1, MANY, now)
        await request(limiter, Priority.START)
        first, second = (asyncio.ensure_future(request(limiter, Priority.START)) for _ in range(2))
        await asyncio.sleep(0.5)
        first.cancel()
        await second
        assert now() == pytest.approx(1.0)

    run(main())


def test_cancelled_caller_holds_no_slot() -> None:
    async def main() -> None:
        limiter = RateLimiter(MANY, 1, now)
        under_way, waits, last = (asyncio.ensure_future(request(limiter, Priority.START, 1.0)) for _ in range(3))
        await asyncio.sleep(0.5)
        waits.cancel()
        under_way.cancel()
        await last
        assert now() == pytest.approx(1.5)
        assert limiter.waiting == 0

    run(main())


def test_caller_cancelled_when_granted_leaves_the_slot_to_the_next() -> None:
    async def main() -> None:
        limiter = RateLimiter(1, 1, now)

        async def give_up_together() -> None:
            await request(limiter, Priority.START, 1.0)
            late.cancel()

        first = asyncio.ensure_future(give_up_together())
        late, following = (asyncio.ensure_future(request(limiter, Priority.START, 1.0)) for _ in range(2))
        await asyncio.gather(first, following)
        assert late.cancelled()
        assert now() == pytest.approx(2.0)

    run(main())


#: Longer than any test takes.
HANGS_S = 1000.0


async def hang(limiter: RateLimiter, *namespaces: str) -> list[asyncio.Task[None]]:
    """Requests of these namespaces, as many as there are places and more, that get no answer."""
    hanging = [
        asyncio.create_task(request(limiter, Priority.RECOVERY, HANGS_S, namespace))
        for namespace in namespaces
        for _ in range(20)
    ]
    await asyncio.sleep(0)
    return hanging


async def end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("hung", [("a",), ("a", "b"), ("a", "b", "c"), ("a", "b", "c", "d")])
@pytest.mark.parametrize("priority", [Priority.RECOVERY, Priority.BEGIN, Priority.REGULAR])
def test_hanging_requests_of_some_namespaces_delay_no_other(hung: tuple[str, ...], priority: Priority) -> None:
    async def main() -> None:
        limiter = RateLimiter(MANY, 16, now)
        hanging = await hang(limiter, *hung)
        for _ in range(5):
            await request(limiter, priority, 1.0, "other")
        assert now() == 5.0
        await end(hanging)
        assert limiter.waiting == 0

    run(main())


def test_namespace_holds_half_of_the_slots_and_its_other_requests_follow_in_order() -> None:
    async def main() -> None:
        limiter, begun = RateLimiter(MANY, 4, now), []

        async def one(number: int, priority: Priority) -> None:
            async with limiter.slot(priority, "a"):
                begun.append((now(), number))
                await asyncio.sleep(1.0)

        urgent = [Priority.START] * 4 + [Priority.RECOVERY]
        await asyncio.gather(*(one(*each) for each in enumerate(urgent)))
        assert begun == [(0.0, 0), (0.0, 1), (1.0, 4), (1.0, 2), (2.0, 3)]

    run(main())
