from __future__ import annotations

from dataclasses import replace

import pytest

from cpr_operator.policy import Costs, Inputs, alternatives, prior

HOUR = 3600.0
MINUTE = 60.0
PAPER = Inputs("Auto", 0.1, 8, prior(28 * HOUR), costs=Costs(5.4 * MINUTE, 0.0, 4 * MINUTE, 4 * MINUTE))


def test_the_paper_says_so() -> None:
    made = alternatives.partial(PAPER)
    assert made.interval_s == pytest.approx(44.8 * HOUR)
    assert made.expected_pls == pytest.approx(0.1)
    assert made.expected_overhead == pytest.approx(0.0068, abs=0.0001)
    assert alternatives.full(PAPER).expected_overhead == pytest.approx(0.085, abs=0.0005)
    assert alternatives.break_even(PAPER) == pytest.approx(0.0025, abs=0.0001)


def test_no_save_begins_before_the_last_is_committed() -> None:
    slow = replace(PAPER, limit=0.0, costs=Costs(1.0, HOUR, 1.0, 1.0))
    assert alternatives.partial(slow).interval_s == HOUR
    assert alternatives.full(slow).interval_s == HOUR
