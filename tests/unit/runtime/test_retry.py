from __future__ import annotations

import random
from collections.abc import Callable
from itertools import islice

import pytest

from cpr_trainer.runtime.retry import backoff, retry


def fails(times: int, error: type[Exception] = OSError) -> Callable[[], str]:
    left = iter(range(times))

    def call() -> str:
        if next(left, None) is not None:
            raise error("no answer")
        return "answer"

    return call


def test_delays_grow_to_the_cap_and_not_beyond() -> None:
    class Highest(random.Random):
        def uniform(self, a: float, b: float) -> float:
            assert a == 0
            return b

    assert list(islice(backoff(Highest(), first_s=0.1, cap_s=1.0), 6)) == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    some = [list(islice(backoff(random.Random(seed)), 5)) for seed in (1, 1, 2)]
    assert some[0] == some[1] != some[2]


def test_call_is_repeated_after_each_delay() -> None:
    paused: list[float] = []
    assert retry(fails(2), OSError, iter((1.0, 2.0, 3.0)), lambda _, delay_s: paused.append(delay_s)) == "answer"
    assert paused == [1.0, 2.0]


def test_last_error_is_raised_when_the_delays_end() -> None:
    with pytest.raises(OSError, match="no answer"):
        retry(fails(3), OSError, iter((1.0, 2.0)), lambda *_: None)


def test_pause_ends_the_retries_by_raising() -> None:
    def pause(error: OSError, _delay_s: float) -> None:
        raise error

    with pytest.raises(OSError, match="no answer"):
        retry(fails(1), OSError, iter((1.0, 2.0)), pause)


def test_other_errors_are_not_retried() -> None:
    with pytest.raises(KeyError):
        retry(fails(1, KeyError), OSError, iter((1.0,)), lambda *_: None)
