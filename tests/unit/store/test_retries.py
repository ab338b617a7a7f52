"""Retries of operations: their errors, number and pauses."""

from __future__ import annotations

import random

import pytest

from cpr_trainer.store import StoreBusyError, StoreError, StoreFullError, StoreUnreachableError
from cpr_trainer.store.interface import retry_unreachable


class Flaky:
    """Raises the given errors, then returns."""

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
        return retry_unreachable(self, random.Random(1), self.slept.append)


def broken() -> StoreError:
    return StoreUnreachableError("Broken.", "Mend it.")


def busy(pause_s: float) -> StoreError:
    return StoreBusyError("Busy.", "Wait.", pause_s)


@pytest.mark.parametrize(
    ("errors", "raised", "calls", "slept"),
    [
        ([], None, 1, []),
        ([busy(1.5)], None, 2, [1.5]),  # a short pause is as requested
        ([busy(7.0)], StoreBusyError, 1, []),  # a long one is the caller's to make
        ([StoreFullError("Full.", "Free space.")], StoreFullError, 1, []),  # a refusal is final
    ],
    ids=["works", "short pause", "long pause", "refusal"],
)
def test_retry_repeats_only_transient_errors(
    errors: list[StoreError], raised: type[StoreError] | None, calls: int, slept: list[float]
) -> None:
    flaky = Flaky(*errors)
    if raised is None:
        assert flaky.persist() == "done"
    else:
        with pytest.raises(raised) as caught:
            flaky.persist()
        assert caught.value is errors[0]
    assert (flaky.calls, flaky.slept) == (calls, slept)


def test_retry_pauses_twice_with_growing_jitter() -> None:
    flaky = Flaky(broken(), broken())
    assert flaky.persist() == "done"
    assert flaky.calls == 3
    assert 0 <= flaky.slept[0] <= 0.2
    assert 0 <= flaky.slept[1] <= 0.4
    assert flaky.slept[0] != flaky.slept[1]
    third = Flaky(broken(), broken(), broken())
    with pytest.raises(StoreUnreachableError):
        third.persist()
    assert third.calls == 3
