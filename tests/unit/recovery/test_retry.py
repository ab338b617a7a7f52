from __future__ import annotations

import pytest

from cpr_operator.recovery.decide import next_attempt


@pytest.mark.parametrize(
    ("tried_for", "pause"),
    [(None, 5), (0, 5), (5, 5), (10, 10), (20, 20), (40, 40), (80, 60), (1e6, 60), (-3, 5)],
)
def test_the_pause_doubles_up_to_a_minute(tried_for: float | None, pause: float) -> None:
    lost_at = None if tried_for is None else 1000.0 - tried_for
    assert next_attempt(1000.0, lost_at) == 1000.0 + pause


def test_an_outage_of_an_hour_takes_as_many_attempts_as_it_should() -> None:
    lost_at = started_at = 0.0
    attempts = []
    while started_at < 3600:
        attempts.append(started_at)
        started_at = next_attempt(started_at, lost_at)
    assert attempts[:7] == [0, 5, 10, 20, 40, 80, 140]
    assert len(attempts) < 70
