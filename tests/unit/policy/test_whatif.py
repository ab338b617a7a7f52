from __future__ import annotations

from dataclasses import replace

import pytest

from cpr_operator.policy import Costs, Inputs, plan, prior
from cpr_operator.policy.alternatives import halved_and_doubled, turns

HOUR = 3600.0
INPUTS = Inputs(
    mode="Auto",
    limit=0.1,
    shards=8,
    belief=prior(28 * HOUR),
    total_samples=56 * 3600,
    samples_per_s=1.0,
    costs=Costs(300.0, 0.0, 60.0, 60.0),
)


def test_a_turn_is_where_the_mode_turns() -> None:
    found = {each.figure: each for each in turns(INPUTS)}
    assert found["limit"].plan.mode == "Full"
    limit = found["limit"].value
    assert plan(replace(INPUTS, limit=limit * 0.99)).mode == "Full"
    assert plan(replace(INPUTS, limit=limit * 1.02)).mode == "Partial"


def test_a_forced_mode_never_turns() -> None:
    assert turns(replace(INPUTS, mode="Full")) == ()
    assert turns(replace(INPUTS, mode="Partial")) == ()


@pytest.mark.parametrize("figure", ["limit", "mtbf_s", "lost_per_failure", "save_stall_s"])
def test_each_figure_is_halved_and_doubled(figure: str) -> None:
    values = {"limit": 0.1, "mtbf_s": 28 * HOUR, "lost_per_failure": 2.0, "save_stall_s": 300.0}
    found = [each for each in halved_and_doubled(replace(INPUTS, belief=prior(28 * HOUR, 2))) if each.figure == figure]
    assert [each.value for each in found] == pytest.approx([values[figure] / 2, values[figure] * 2])


def test_what_cannot_be_doubled_is_left_out() -> None:
    lost = [each.value for each in halved_and_doubled(INPUTS) if each.figure == "lost_per_failure"]
    assert lost == [2.0]
