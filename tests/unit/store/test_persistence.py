"""What is tried again, how often, and after how long."""

from __future__ import annotations

import random

import pytest

from cpr_trainer.store import StoreBusyError, StoreError, StoreFullError, StoreUnreachableError
from cpr_trainer.store.s3_errors import persist


class Flaky:
    """Fails as told, then returns."""

    def __init__(self, *errors: StoreError) -> None:
        self.errors = list(errors)
        self.calls = 0
        self.slept: list[float] = []

    def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"

    def persist(self) -> str:
        return persist(self, random.Random(1), self.slept.append)


def broken() -> StoreError:
    return StoreUnreachableError("Broken.", "Mend it.")


def busy(pause_s: float) -> StoreError:
    return StoreBusyError("Busy.", "Wait.", pause_s)


def test_what_works_is_done_once() -> None:
    flaky = Flaky()
    assert flaky.persist() == "done"
    assert (flaky.calls, flaky.slept) == (1, [])


def test_two_breaks_are_bridged_with_growing_random_pauses() -> None:
    flaky = Flaky(broken(), broken())
    assert flaky.persist() == "done"
    assert flaky.calls == 3
    assert 0 <= flaky.slept[0] <= 0.2
    assert 0 <= flaky.slept[1] <= 0.4
    assert flaky.slept[0] != flaky.slept[1]


def test_a_third_break_is_the_callers() -> None:
    flaky = Flaky(broken(), broken(), broken())
    with pytest.raises(StoreUnreachableError):
        flaky.persist()
    assert flaky.calls == 3


def test_a_short_pause_is_made_as_asked() -> None:
    flaky = Flaky(busy(1.5))
    assert flaky.persist() == "done"
    assert flaky.slept == [1.5]


def test_a_long_pause_is_the_callers_to_make() -> None:
    flaky = Flaky(busy(7.0))
    with pytest.raises(StoreBusyError) as raised:
        flaky.persist()
    assert raised.value.retry_after_s == 7.0
    assert (flaky.calls, flaky.slept) == (1, [])


def test_a_refusal_is_final() -> None:
    flaky = Flaky(StoreFullError("Full.", "Free space."))
    with pytest.raises(StoreFullError):
        flaky.persist()
    assert flaky.calls == 1
