from __future__ import annotations

import pytest

from cpr_operator.cluster.rate import TokenBucket


def test_a_burst_passes_and_what_follows_waits_its_turn() -> None:
    now = 0.0
    bucket = TokenBucket(10, lambda: now)
    assert [bucket.reserve() for _ in range(10)] == [0.0] * 10
    assert [bucket.reserve() for _ in range(3)] == pytest.approx([0.1, 0.2, 0.3])
    now = 0.3
    assert bucket.reserve() == pytest.approx(0.1)


def test_a_quiet_time_saves_no_more_than_one_second() -> None:
    now = 0.0
    bucket = TokenBucket(10, lambda: now)
    now = 1000.0
    assert [bucket.reserve() for _ in range(11)][9:] == pytest.approx([0.0, 0.1])
