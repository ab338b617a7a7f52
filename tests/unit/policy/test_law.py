"""Properties of every choice of the law, for any inputs."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cpr_operator.policy.equations import full_interval
from cpr_operator.policy.law import SHORTEST_S, TIE, Choice, Mode, Odds, choose

HOUR = 3600.0
MINUTE = 60.0
#: The emulation of the CPR paper; its budget is 0.1 of 56 h on 8 shards.
PAPER = Odds(0.1 * 56 * HOUR * 8, 56 * HOUR, 28 * HOUR, 4.0, 5.4 * MINUTE, 0.0)
ASYNCHRONOUS = PAPER._replace(save_s=3.0, commit_s=5.4 * MINUTE)

ODDS = st.builds(
    Odds,
    budget_s=st.floats(0, 1e9),
    left_s=st.floats(1, 1e7),
    mtbf_s=st.floats(60, 1e8),
    lost=st.floats(1, 64),
    save_s=st.floats(0, 3600),
    commit_s=st.floats(0, 3600),
    replay=st.none(),
)
REPLAYING = st.builds(Odds._replace, ODDS, replay=st.floats(1e-3, 10))
MODES: st.SearchStrategy[Mode] = st.sampled_from(["Auto", "Partial", "Full"])


def reach(choice: Choice, odds: Odds) -> float:
    """The longest training between two cuts, or between a cut and the end."""
    return min(choice.interval_s, odds.left_s)


@given(ODDS, MODES)
def test_no_save_begins_before_the_last_is_committed(odds: Odds, mode: Mode) -> None:
    assert choose(mode, None, odds).interval_s >= max(odds.commit_s, SHORTEST_S)


@given(ODDS)
def test_partial_interval_leaves_budget_for_expected_failures(odds: Odds) -> None:
    """Unless saving so often would not pay: then it saves as full recovery does, and rolls back what does not fit."""
    choice = choose("Auto", None, odds)
    assume(choice.mode == "Partial" and choice.bound not in {"full", "commit"})
    interval, commit, affordable = reach(choice, odds), odds.commit_s, odds.budget_s / odds.lost
    failures = odds.left_s / odds.mtbf_s
    mean = failures * (interval / 2 + commit)
    deviation = math.sqrt(failures * ((interval / 2 + commit) ** 2 + interval**2 / 12))
    assert interval + commit <= affordable * (1 + 1e-9)
    assert mean + deviation <= affordable * (1 + 1e-9)


@given(ODDS, MODES)
def test_partial_interval_is_at_least_the_full_one(odds: Odds, mode: Mode) -> None:
    """But for the rounding that spreads the last cuts evenly."""
    choice = choose(mode, None, odds)
    assert choice.interval_s >= choose("Full", None, odds).interval_s * (1 - 1e-9)
    assert choice.interval_s >= min(full_interval(odds.save_s, odds.mtbf_s), odds.left_s) / 2 * (1 - 1e-9)


@given(ODDS, MODES)
def test_remaining_cuts_are_spread_evenly(odds: Odds, mode: Mode) -> None:
    interval = choose(mode, None, odds).interval_s
    shortest = max(odds.commit_s, SHORTEST_S)
    assume(interval < odds.left_s and interval > shortest)
    parts = odds.left_s / interval
    assert parts == pytest.approx(round(parts), rel=1e-9)


@given(ODDS, st.floats(1, 100), st.sampled_from(["budget_s", "mtbf_s"]))
def test_interval_grows_with_budget_and_mtbf(odds: Odds, factor: float, name: str) -> None:
    more = odds._replace(**{name: getattr(odds, name) * factor})
    for mode in ("Auto", "Partial"):
        assert reach(choose(mode, None, more), more) >= reach(choose(mode, None, odds), odds) * (1 - 1e-9)


@given(ODDS, st.floats(1, 100))
def test_interval_shrinks_with_the_shards_lost_per_failure(odds: Odds, factor: float) -> None:
    worse = odds._replace(lost=odds.lost * factor)
    assert choose("Partial", None, worse).interval_s <= choose("Partial", None, odds).interval_s * (1 + 1e-9)


@given(ODDS)
def test_auto_mode_costs_no_more_than_either_mode_except_for_ties(odds: Odds) -> None:
    choice = choose("Auto", None, odds)
    chosen = choice.full_cost if choice.mode == "Full" else choice.partial_cost
    rounding = odds.save_s / odds.left_s  # one cut more or less by the even spread
    assert chosen <= min(choice.full_cost, choice.partial_cost) + TIE + rounding


@given(ODDS, MODES, st.floats(1, 1e5))
def test_fixed_interval_is_used(odds: Odds, mode: Mode, fixed: float) -> None:
    choice = choose(mode, fixed, odds)
    assert choice.interval_s == fixed
    assert choice.mode == ("Full" if mode == "Full" or (mode == "Auto" and odds.budget_s == 0) else "Partial")


@pytest.mark.parametrize(
    ("mode", "odds", "expected", "bound"),
    [
        ("Auto", PAPER, "Partial", "failures"),
        ("Full", PAPER, "Full", "full"),
        ("Auto", PAPER._replace(budget_s=0.0), "Full", "full"),
        ("Partial", PAPER._replace(budget_s=0.0), "Partial", "full"),
        ("Partial", PAPER._replace(budget_s=PAPER.budget_s / 20), "Partial", "full"),
        ("Auto", PAPER._replace(mtbf_s=280 * HOUR), "Partial", "failure"),
        ("Auto", ASYNCHRONOUS, "Partial", "tie"),
        ("Partial", PAPER._replace(save_s=1e-3, commit_s=HOUR), "Partial", "commit"),
        # Saves that cost next to nothing make full recovery as cheap as any, and it loses nothing.
        ("Auto", PAPER._replace(save_s=1e-3), "Full", "full"),
    ],
)
def test_interval_has_its_bound(mode: Mode, odds: Odds, expected: str, bound: str) -> None:
    choice = choose(mode, None, odds)
    assert (choice.mode, choice.bound) == (expected, bound)


@given(REPLAYING, st.floats(0.2, 5))
def test_replay_interval_is_the_cheapest(odds: Odds, factor: float) -> None:
    """O_save / T + rho * (T/2 + c) / T_fail, but for the rounding that spreads the last cuts evenly."""
    assert odds.replay is not None
    choice = choose("Auto", None, odds)
    shortest = max(odds.commit_s, SHORTEST_S)
    assume(shortest < choice.interval_s < odds.left_s / 20)

    def cost(interval: float) -> float:
        assert odds.replay is not None
        return odds.save_s / interval + odds.replay * (interval / 2 + odds.commit_s) / odds.mtbf_s

    assert cost(choice.interval_s) <= cost(choice.interval_s * factor) * 1.01
    assert choice.partial_cost == pytest.approx(cost(choice.interval_s), rel=0.1)


@given(REPLAYING, st.floats(0, 1e9))
def test_replay_interval_ignores_the_budget(odds: Odds, budget_s: float) -> None:
    choice = choose("Auto", None, odds)
    assert choice == choose("Auto", None, odds._replace(budget_s=budget_s))
    assert choice.mode == "Partial"
    assert choice.interval_s >= max(odds.commit_s, SHORTEST_S)


def test_replay_interval_grows_with_the_speed_of_replay() -> None:
    slow, fast = (choose("Auto", None, ASYNCHRONOUS._replace(commit_s=0.0, replay=rho)) for rho in (1.0, 0.01))
    assert slow.interval_s == pytest.approx(full_interval(3.0, 28 * HOUR), rel=0.05)
    assert fast.interval_s == pytest.approx(10 * slow.interval_s, rel=0.1)
    assert (slow.bound, fast.bound) == ("replay", "replay")
    fixed = choose("Full", 60.0, ASYNCHRONOUS._replace(replay=1.0))
    assert (fixed.mode, fixed.interval_s, fixed.bound) == ("Full", 60.0, "fixed")


def test_ample_budget_is_not_spent() -> None:
    """Saves that cost less than a tie come so often that they cost just that."""
    choice = choose("Auto", None, ASYNCHRONOUS._replace(budget_s=1e9))
    assert ASYNCHRONOUS.save_s / choice.interval_s == pytest.approx(TIE, rel=0.02)


def test_no_cut_is_just_before_the_end() -> None:
    late = PAPER._replace(left_s=4 * HOUR)
    assert choose("Auto", None, late).interval_s >= late.left_s
