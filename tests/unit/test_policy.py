from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpr_operator import policy
from cpr_operator.policy import Costs, Inputs, plan

HOUR = 3600.0
MINUTE = 60.0

#: The emulated cluster of the paper, calibrated. Minutes: O_save, O_load + O_res; percent: full; hours: T_save,full;
#: percent: partial recovery with the interval left as it is.
CALIBRATED = [
    (5.2, 5.7, 8.2, 2.20, 4.27),
    (5.0, 8.3, 8.2, 2.16, 4.35),
    (5.6, 5.4, 8.5, 2.29, 4.41),
    (5.4, 8.0, 8.5, 2.25, 4.49),
]
PAPER = Inputs(
    mode="Auto", limit=0.1, shards=8, mtbf_s=28 * HOUR, costs=Costs(5.4 * MINUTE, 0.0, 4 * MINUTE, 4 * MINUTE)
)

LIMITS = st.floats(0.0, 0.9)
INPUTS = st.builds(
    Inputs,
    mode=st.sampled_from(["Auto", "Partial", "Full"]),
    limit=LIMITS,
    shards=st.integers(1, 1024),
    mtbf_s=st.floats(60, 1e7),
    spent=st.floats(0, 0.5),
    total_samples=st.integers(0, 10**10),
    samples_per_s=st.none() | st.floats(1, 1e6),
    costs=st.builds(Costs, st.floats(0, 600), st.floats(0, 600), st.floats(0, 600), st.floats(0, 600)),
)


@pytest.mark.parametrize(("save_min", "load_min", "overhead", "interval_h", "naive"), CALIBRATED)
def test_equations_reproduce_the_calibrated_table(
    save_min: float, load_min: float, overhead: float, interval_h: float, naive: float
) -> None:
    costs = Costs(save_stall_s=save_min * MINUTE, commit_s=0.0, load_s=load_min * MINUTE, reschedule_s=0.0)
    interval = policy.full_interval(costs.save_stall_s, PAPER.mtbf_s)
    assert interval / HOUR == pytest.approx(interval_h, abs=0.01)
    assert 100 * policy.full_overhead(interval, PAPER.mtbf_s, costs) == pytest.approx(overhead, abs=0.06)
    assert 100 * policy.partial_overhead(interval, PAPER.mtbf_s, costs) == pytest.approx(naive, abs=0.05)


def test_the_papers_job_is_planned_as_in_the_paper() -> None:
    made = plan(PAPER)
    assert made.mode == "Partial"
    assert made.interval_s / HOUR == pytest.approx(44.8)
    assert 100 * made.expected_overhead == pytest.approx(0.68, abs=0.01)
    assert made.expected_pls == pytest.approx(0.1)


@given(st.floats(0.001, 0.9), st.floats(60, 1e7), st.integers(1, 1024), st.floats(0, 100))
def test_the_partial_interval_solves_the_expected_loss(pls: float, mtbf: float, shards: int, commit: float) -> None:
    interval = policy.partial_interval(pls, mtbf, shards, commit)
    assert policy.expected_pls(interval, mtbf, shards, commit) == pytest.approx(pls)


@given(st.floats(10, 1e6), st.floats(0.1, 600))
def test_the_full_interval_is_the_cheapest(mtbf: float, save: float) -> None:
    costs = Costs(save_stall_s=save)
    best = policy.full_interval(save, mtbf)
    least = policy.full_overhead(best, mtbf, costs)
    assert least <= policy.full_overhead(best * 1.1, mtbf, costs)
    assert least <= policy.full_overhead(best * 0.9, mtbf, costs)


@given(INPUTS, st.floats(1, 3), st.sampled_from(["limit", "mtbf_s", "shards"]))
def test_more_budget_time_or_shards_never_cost_more(inputs: Inputs, factor: float, field: str) -> None:
    inputs = replace(inputs, mode="Auto")
    more = getattr(inputs, field) * factor
    better = replace(inputs, **{field: round(more) if field == "shards" else more})
    assert plan(better).expected_overhead <= plan(inputs).expected_overhead + 1e-9


@given(INPUTS)
def test_the_interval_grows_with_the_budget_while_partial(inputs: Inputs) -> None:
    less, more = plan(inputs), plan(replace(inputs, limit=inputs.limit + 0.1))
    fits = inputs.limit > inputs.spent and less.expected_pls <= inputs.remaining
    if less.mode == more.mode == "Partial" and fits:
        assert more.interval_s >= less.interval_s - 1e-6


@given(INPUTS)
def test_a_chosen_partial_plan_keeps_its_promises(inputs: Inputs) -> None:
    made = plan(replace(inputs, mode="Auto"))
    assert made.interval_s >= max(policy.MIN_INTERVAL_S, inputs.costs.commit_s)
    if made.mode == "Partial":
        assert made.expected_pls <= inputs.remaining * (1 + 1e-9)
        assert made.interval_s <= policy.longest_interval(inputs)
        assert made.expected_overhead <= plan(replace(inputs, mode="Full")).expected_overhead


def test_no_interval_is_longer_than_one_failure_may_cost() -> None:
    inputs = replace(PAPER, total_samples=8000, samples_per_s=1.0, costs=replace(PAPER.costs, commit_s=400))
    made = plan(inputs)
    assert policy.longest_interval(inputs) == pytest.approx(0.1 * 8000 * 8 - 400)
    assert made.interval_s <= 6000
    assert (made.interval_s + 400) * 1.0 <= 0.1 * 8000 * 8


@pytest.mark.parametrize(
    ("change", "mode", "interval", "says"),
    [
        ({}, "Partial", None, "full recovery would cost"),
        ({"mode": "Full"}, "Full", None, "full recovery is asked for"),
        ({"limit": 0.0}, "Full", None, "the budget allows no loss"),
        ({"limit": 0.0, "fixed_interval_s": 60}, "Full", 60, "the budget allows no loss"),
        ({"limit": 0.001}, "Full", None, "partial recovery within the budget would cost"),
        ({"limit": 0.001, "mode": "Partial"}, "Partial", None, "partial recovery is asked for"),
        ({"spent": 0.1}, "Full", None, "no interval of 1 s or more fits"),
        ({"spent": 0.07, "reserved": 0.03}, "Full", None, "no interval of 1 s or more fits"),
        ({"spent": 0.1, "mode": "Partial"}, "Partial", None, "losses that do not fit roll the job back"),
        ({"fixed_interval_s": 30}, "Partial", 30, "the interval is fixed; the expected losses fit into"),
        ({"fixed_interval_s": 1e6}, "Partial", 1e6, "the expected losses exceed"),
        ({"fixed_interval_s": 30, "mode": "Full"}, "Full", 30, "full recovery is asked for"),
    ],
)
def test_every_way_to_a_plan_says_why(change: dict[str, object], mode: str, interval: float | None, says: str) -> None:
    made = plan(replace(PAPER, **change))  # type: ignore[arg-type]
    assert made.mode == mode
    assert says in made.reason
    assert made.reason.startswith(f"{mode} recovery, a save every ")
    assert interval is None or made.interval_s == interval


def test_figures_are_plain_numbers_for_people() -> None:
    figures = plan(PAPER).figures()
    assert figures["mtbfSeconds"] == 28 * HOUR
    assert figures["saveStallSeconds"] == 5.4 * MINUTE
    assert all(isinstance(value, float) for value in figures.values())
