"""The limit of the rate of saves holds in any interval, for all threads together."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpr_trainer.store import Throttle
from cpr_trainer.store.transfers import TokenBucket

RATE = 1000.0
BURST = 100.0  # a tenth of a second of it


@given(st.lists(st.tuples(st.integers(0, 5000), st.floats(0, 3)), min_size=1, max_size=50))
def test_throttle_allows_the_rate_and_a_burst(takes: list[tuple[int, float]]) -> None:
    """A sender that waits has sent at most the burst and the rate since the start, at any time."""
    bucket, now_s, sent = TokenBucket(RATE, 0.0), 0.0, 0
    for size, idle_s in takes:
        now_s += idle_s
        now_s += bucket.take(size, now_s)
        sent += size
        assert sent <= BURST + RATE * now_s + 1e-6


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=50))
def test_constant_sender_gets_the_whole_rate(sizes: list[int]) -> None:
    bucket, now_s = TokenBucket(RATE, 0.0), 0.0
    for size in sizes:
        now_s += bucket.take(size, now_s)
    assert now_s == pytest.approx(max(0.0, (sum(sizes) - BURST) / RATE))


def test_idle_time_allows_one_burst() -> None:
    bucket = TokenBucket(RATE, 0.0)
    assert bucket.take(100, 60.0) == 0.0
    assert bucket.take(100, 60.0) == pytest.approx(0.1)


def test_senders_wait_in_their_order() -> None:
    bucket = TokenBucket(RATE, 0.0)
    assert [bucket.take(100, 0.0) for _ in range(4)] == pytest.approx([0.0, 0.1, 0.2, 0.3])


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_rate_of_zero_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="lets nothing through"):
        TokenBucket(rate, 0.0)


def test_urgent_transfer_does_not_wait() -> None:
    urgent = threading.Event()
    throttle = Throttle(1.0, urgent.is_set, clock=lambda: 0.0)
    waiting = threading.Thread(target=throttle.wait, args=(1_000_000,))
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    urgent.set()
    waiting.join()
    throttle.wait(1_000_000)


def test_urgent_transfer_does_not_count() -> None:
    urgent = threading.Event()
    throttle = Throttle(RATE, urgent.is_set, clock=lambda: 0.0)
    urgent.set()
    for _ in range(10):
        throttle.wait(1_000_000)
    urgent.clear()
    throttle.wait(int(BURST))
    late = threading.Thread(target=throttle.wait, args=(1,), daemon=True)
    late.start()
    late.join(0.1)
    assert late.is_alive(), "the limit holds again"
    urgent.set()
    late.join()
