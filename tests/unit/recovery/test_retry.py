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
