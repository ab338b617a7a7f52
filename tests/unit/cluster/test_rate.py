from __future__ import annotations

import asyncio

import pytest

from cpr_operator.cluster.protocol import BusyError, Priority
from cpr_operator.cluster.rate import TokenBucket
from support.virtual_time import now, run


def taken(*priorities: Priority, per_second: float = 10, after_s: float = 0.0) -> list[tuple[float, int]]:
    """When each of these calls, all made at once, had its turn: seconds and its number, in order."""
    turns: list[tuple[float, int]] = []

    async def main() -> None:
        bucket = TokenBucket(per_second, now)
        await asyncio.sleep(after_s)

        async def one(number: int, priority: Priority) -> None:
            await bucket.take(priority)
            turns.append((round(now() - after_s, 3), number))

        await asyncio.gather(*(one(*each) for each in enumerate(priorities)))

    run(main())
    return turns


@pytest.mark.parametrize("quiet_s", [0.0, 1000.0])
def test_a_burst_passes_and_what_follows_waits_its_turn(quiet_s: float) -> None:
    turns = taken(*[Priority.START] * 13, after_s=quiet_s)
    assert [when for when, _ in turns] == [0.0] * 10 + [0.1, 0.2, 0.3]
    assert [number for _, number in turns] == list(range(13))


def test_the_most_urgent_goes_first_and_equals_in_their_order() -> None:
    first = [Priority.BEGIN] * 10
    turns = taken(*first, Priority.BEGIN, Priority.ROSTER, Priority.START, Priority.RECOVERY, Priority.ROSTER)
    assert [number for _, number in turns[10:]] == [13, 11, 14, 12, 10]


def test_a_regular_call_leaves_half_of_the_bucket_and_never_waits() -> None:
    async def main() -> None:
        bucket = TokenBucket(10, now)
        for _ in range(6):
            await bucket.take(Priority.REGULAR)
        with pytest.raises(BusyError):
            await bucket.take(Priority.REGULAR)
        for _ in range(4):
            await bucket.take(Priority.RECOVERY)
        assert now() == 0.0
        await asyncio.sleep(0.5)
        waiting = asyncio.gather(*(bucket.take(Priority.BEGIN) for _ in range(6)))
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await bucket.take(Priority.REGULAR)
        await waiting

    run(main())


def test_a_caller_that_gives_up_takes_no_token_with_it() -> None:
    async def main() -> None:
        bucket = TokenBucket(1, now)
        await bucket.take(Priority.START)
        first, second = (asyncio.ensure_future(bucket.take(Priority.START)) for _ in range(2))
        await asyncio.sleep(0.5)
        first.cancel()
        await second
        assert now() == pytest.approx(1.0)

    run(main())
