from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpr_operator.policy import Costs, Inputs, after_quiet, moved, plan, prior
from cpr_operator.policy.plan import NOISE, STEP
from cprjob_bench.simulation.recovery_strategies import steady_s

HOUR = 3600.0
INPUTS = Inputs(
    mode="Auto",
    limit=0.1,
    shards=8,
    estimate=prior(28 * HOUR),
    total_samples=56 * 3600,
    samples_per_s=1.0,
    costs=Costs(300.0, 10.0, 60.0, 60.0),
)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"a": 1.0}, {"a": 1.25}, False),
        ({"a": 1.0}, {"a": 1.26}, True),
        ({"a": 1.0}, {"a": 0.74}, True),
        ({"a": 0.0}, {"a": NOISE}, False),
        ({"a": 0.0}, {"a": 2 * NOISE}, True),
        ({"a": 1.0}, {"a": 1.0, "b": 0.0}, True),
        ({}, {}, False),
    ],
)
def test_moved_detects_steps_and_ignores_noise(old: dict[str, float], new: dict[str, float], *, expected: bool) -> None:
    assert moved(old, new) is expected


@given(st.lists(st.floats(0.8, 1.25), max_size=50))
def test_moved_ignores_swings_within_the_step(swings: list[float]) -> None:
    in_force = plan(INPUTS).status_inputs()
    for swing in swings:
        assert not moved(in_force, plan(replace(INPUTS, samples_per_s=swing)).status_inputs())


@given(st.floats(0.05, 1.0), st.floats(1, 1000))
def test_quiet_job_is_replanned_after_steady_s(left: float, mtbf_h: float) -> None:
    """The simulator skips only intervals without a new plan."""
    estimate, total = prior(mtbf_h * HOUR), INPUTS.total_samples

    def inputs_after(quiet_s: float) -> dict[str, float]:
        saved = int((1 - left) * total + quiet_s)
        inputs = replace(INPUTS, estimate=after_quiet(estimate, quiet_s), saved_samples=min(saved, total))
        return plan(inputs).status_inputs()

    steady = steady_s(estimate.beta_s, left * total, total)
    assert not moved(inputs_after(0.0), inputs_after(0.99 * steady - 1))
    if steady < left * total:
        assert moved(inputs_after(0.0), inputs_after(1.01 * steady + 1))
    assert steady <= STEP * max(estimate.beta_s, 1)
