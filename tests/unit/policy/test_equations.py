"""CPR's equations against its published figures, against each other, and against plain sampling."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpr_operator.api.sizes import recoverable
from cpr_operator.policy import equations as eq

HOUR = 3600.0
MINUTE = 60.0
MTBF = 28 * HOUR

#: The emulated cluster of the paper, calibrated. Minutes: O_save, O_load + O_res; percent: full; hours: T_save,full;
#: percent: partial recovery with the interval left as it is.
CALIBRATED = [
    (5.2, 5.7, 8.2, 2.20, 4.27),
    (5.0, 8.3, 8.2, 2.16, 4.35),
    (5.6, 5.4, 8.5, 2.29, 4.41),
    (5.4, 8.0, 8.5, 2.25, 4.49),
]


@pytest.mark.parametrize(("save_min", "recover_min", "overhead", "interval_h", "naive"), CALIBRATED)
def test_equations_match_the_calibrated_table(
    save_min: float, recover_min: float, overhead: float, interval_h: float, naive: float
) -> None:
    save, recover = save_min * MINUTE, recover_min * MINUTE
    interval = eq.full_interval(save, MTBF)
    assert interval / HOUR == pytest.approx(interval_h, abs=0.01)
    assert 100 * eq.full_overhead(interval, MTBF, save, recover) == pytest.approx(overhead, abs=0.06)
    assert 100 * eq.partial_overhead(interval, MTBF, save, recover) == pytest.approx(naive, abs=0.05)


def test_pls_of_a_failure_is_its_age_on_the_lost_shards() -> None:
    assert eq.pls_of_failure(7 * HOUR, 56 * HOUR, shards=8) == pytest.approx(1 / 64)
    assert eq.pls_of_failure(7 * HOUR, 56 * HOUR, shards=8, lost=4) == pytest.approx(4 / 64)


@given(st.floats(1, 600), st.floats(600, 1e7), st.integers(1, 1024), st.floats(1, 64), st.floats(0, 1e4))
def test_break_even_budget_makes_both_recoveries_cost_the_same(
    save: float, mtbf: float, shards: int, lost: float, recover: float
) -> None:
    pls = eq.break_even_pls(save, mtbf, shards, lost)
    part = eq.partial_interval(pls, mtbf, shards, lost)
    full = eq.full_interval(save, mtbf)
    assert part == pytest.approx(full / 2)
    partial_cost = eq.partial_overhead(part, mtbf, save, recover)
    assert partial_cost == pytest.approx(eq.full_overhead(full, mtbf, save, recover))


@given(st.floats(0.001, 0.9), st.floats(60, 1e7), st.integers(1, 1024), st.floats(1, 64), st.floats(0, 100))
def test_partial_interval_solves_the_expected_loss(
    pls: float, mtbf: float, shards: int, lost: float, commit: float
) -> None:
    interval = eq.partial_interval(pls, mtbf, shards, lost, commit)
    assert eq.expected_pls(interval, mtbf, shards, lost, commit) == pytest.approx(pls)


@given(st.floats(10, 1e6), st.floats(0.1, 600), st.floats(0, 100))
def test_full_interval_is_the_cheapest(mtbf: float, save: float, commit: float) -> None:
    best = eq.full_interval(save, mtbf)
    least = eq.full_overhead(best, mtbf, save, 0.0, commit)
    assert least <= eq.full_overhead(best * 1.1, mtbf, save, 0.0, commit)
    assert least <= eq.full_overhead(best * 0.9, mtbf, save, 0.0, commit)


@pytest.mark.parametrize(
    ("failures", "affordable"), [(2.0, 0.5), (2.0, 1.0), (2.0, 2.0), (5.0, 2.0), (5.0, 4.0), (20.0, 8.0), (0.1, 0.5)]
)
def test_rolled_back_time_matches_sampling(failures: float, affordable: float) -> None:
    """Ages uniform in [0, 1] are paid while they fit; what cannot be paid is rolled back."""
    rng, unpaid, runs = random.Random(1), 0.0, 20_000
    for _ in range(runs):
        left, at = affordable, rng.expovariate(failures)
        while at < 1:
            age = rng.random()
            if age <= left:
                left -= age
            else:
                unpaid += age
            at += rng.expovariate(failures)
    found = eq.rolled_back(failures, 1.0, 0.0, affordable)
    # The last failure that fits leaves a rest that pays for nothing: the estimate is low by up to half an interval.
    assert found <= unpaid / runs + 0.05
    assert found >= unpaid / runs - 0.3 * min(failures, 1.0)


@given(st.floats(0.001, 1e4), st.floats(1, 1e5), st.floats(0, 1e3), st.floats(0, 1e7))
def test_rolled_back_time_is_at_most_the_lost_time(
    failures: float, interval: float, commit: float, affordable: float
) -> None:
    everything = failures * eq.expected_age(interval, commit)
    assert eq.rolled_back(failures, interval, commit, 0.0) == everything
    assert 0 <= eq.rolled_back(failures, interval, commit, affordable) <= everything
    assert (
        eq.rolled_back(failures, interval, commit, 10 * affordable)
        <= eq.rolled_back(failures, interval, commit, affordable) + 1e-6 * everything
    )


@pytest.mark.parametrize(("shards", "k"), [(5, 1), (8, 2), (18, 4), (4, 3)])
def test_uncovered_portion_matches_the_parity_ring(shards: int, k: int) -> None:
    """Count all pairs of shards one by one."""
    pairs = [(a, b) for a in range(shards) for b in range(shards) if a != b]
    given_back = [recoverable(a, {a, b}, shards, k) and recoverable(b, {a, b}, shards, k) for a, b in pairs]
    assert eq.uncovered(shards, k, 2.0) == pytest.approx(1 - sum(given_back) / len(pairs))
    assert eq.uncovered(shards, k, 1.0) == 0.0
