from __future__ import annotations

from dataclasses import replace

import pytest

from cpr_operator.policy import Costs, Inputs, alternatives, plan, prior
from cpr_operator.policy.alternatives import halved_and_doubled, mode_changes

HOUR = 3600.0
MINUTE = 60.0
PAPER = Inputs("Auto", 0.1, 8, prior(28 * HOUR), costs=Costs(5.4 * MINUTE, 0.0, 4 * MINUTE, 4 * MINUTE))


def test_open_loop_follows_the_paper() -> None:
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


INPUTS = Inputs(
    mode="Auto",
    limit=0.1,
    shards=8,
    estimate=prior(28 * HOUR),
    total_samples=56 * 3600,
    samples_per_s=1.0,
    costs=Costs(300.0, 0.0, 60.0, 60.0),
)


def test_mode_change_is_at_the_boundary() -> None:
    found = {each.parameter: each for each in mode_changes(INPUTS)}
    assert found["limit"].plan.mode == "Full"
    limit = found["limit"].value
    assert plan(replace(INPUTS, limit=limit * 0.99)).mode == "Full"
    assert plan(replace(INPUTS, limit=limit * 1.02)).mode == "Partial"


def test_forced_mode_never_changes() -> None:
    assert mode_changes(replace(INPUTS, mode="Full")) == ()
    assert mode_changes(replace(INPUTS, mode="Partial")) == ()


@pytest.mark.parametrize("parameter", ["limit", "mtbf_s", "lost_per_failure", "save_stall_s"])
def test_each_parameter_is_halved_and_doubled(parameter: str) -> None:
    values = {"limit": 0.1, "mtbf_s": 28 * HOUR, "lost_per_failure": 2.0, "save_stall_s": 300.0}
    found = [
        each
        for each in halved_and_doubled(replace(INPUTS, estimate=prior(28 * HOUR, 2)))
        if each.parameter == parameter
    ]
    assert [each.value for each in found] == pytest.approx([values[parameter] / 2, values[parameter] * 2])


def test_parameter_at_its_limit_is_left_out() -> None:
    lost = [each.value for each in halved_and_doubled(INPUTS) if each.parameter == "lost_per_failure"]
    assert lost == [2.0]
