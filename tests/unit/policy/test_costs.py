from __future__ import annotations

import pytest

from cpr_operator.policy import Costs, running


def test_what_is_not_measured_is_guessed_and_said_to_be() -> None:
    costs = Costs.measured(save_stall_s=2.0, load_s=3.0)
    assert costs == Costs(2.0, 1.0, 3.0, 5.0, guessed=("commit_s", "reschedule_s"))
    assert costs.recover_s == 8.0
    assert Costs.measured(0.0, 0.0, 0.0, 0.0).guessed == ()


def test_a_running_estimate_begins_with_the_first_measurement_and_follows_the_rest() -> None:
    estimate = running(None, 10.0)
    assert estimate == 10.0
    assert running(estimate, 20.0) == pytest.approx(13.0)
    for _ in range(20):
        estimate = running(estimate, 20.0)
    assert estimate == pytest.approx(20.0, abs=0.02)
