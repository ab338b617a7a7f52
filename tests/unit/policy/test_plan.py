from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpr_operator.policy import Costs, FailureEstimate, Inputs, after_failure, plan, prior

HOUR = 3600.0
MINUTE = 60.0
RATE = 1000.0
#: A failure every 28 h, of 4 shards, and one of them was seen.
SEEN = FailureEstimate(2.0, 56 * HOUR, 4.0)
PAPER = Inputs(
    mode="Auto",
    limit=0.1,
    shards=8,
    estimate=SEEN,
    total_samples=int(56 * HOUR * RATE),
    samples_per_s=RATE,
    costs=Costs(5.4 * MINUTE, 0.0, 4 * MINUTE, 4 * MINUTE),
)
INPUTS = st.builds(
    Inputs,
    mode=st.sampled_from(["Auto", "Partial", "Full"]),
    limit=st.floats(0.0, 0.9),
    shards=st.integers(1, 1024),
    estimate=st.builds(FailureEstimate, st.floats(1, 100), st.floats(60, 1e7), st.floats(1, 64)),
    spent=st.floats(0, 0.5),
    reserved=st.floats(0, 0.1),
    fixed_interval_s=st.none() | st.floats(1, 1e5),
    total_samples=st.integers(0, 10**10),
    saved_samples=st.integers(0, 10**10),
    samples_per_s=st.none() | st.floats(1, 1e6),
    costs=st.builds(Costs, st.floats(0, 600), st.floats(0, 600), st.floats(0, 600), st.floats(0, 600)),
    replays=st.booleans(),
    replay_ratio=st.none() | st.floats(0, 10),
    data_shards=st.sampled_from([0, 1, 4]),
)


def test_plan_for_the_papers_job() -> None:
    made = plan(PAPER)
    assert made.mode == "Partial"
    assert made.interval_s == pytest.approx(5.6 * HOUR)
    assert made.expected_overhead == pytest.approx(0.0194 - 0.0005 + 0.0048, abs=0.001)
    assert made.expected_pls == pytest.approx(2 * 4 * 2.8 / (56 * 8), rel=0.05)
    assert made.expected_lost_samples == pytest.approx(made.expected_pls * PAPER.total_samples)


@given(INPUTS)
def test_plan_never_expects_to_overspend(inputs: Inputs) -> None:
    made = plan(inputs)
    assert 0 <= made.expected_pls <= inputs.remaining
    assert made.mode == "Partial" or made.expected_pls == 0
    assert made.expected_overhead >= 0
    with_replay = " with replay" if inputs.replays else ""
    assert made.reason.startswith(f"{made.mode} recovery{with_replay}, a save every ")
    assert all(type(value) is float for value in made.status_inputs().values())


@given(INPUTS, st.integers(2, 8))
def test_plan_interval_grows_with_the_shards(inputs: Inputs, factor: int) -> None:
    inputs = replace(inputs, estimate=replace(inputs.estimate, lost_per_failure=1.0))
    more = replace(inputs, shards=inputs.shards * factor)
    left_s = inputs.odds.left_s
    assert min(plan(more).interval_s, left_s) >= min(plan(inputs).interval_s, left_s) * (1 - 1e-9)


def test_plan_with_replay_needs_no_budget_and_states_its_cost() -> None:
    guessed = plan(replace(PAPER, limit=0.0, replays=True))
    assert (guessed.mode, guessed.expected_pls) == ("Partial", 0.0)
    assert guessed.inputs.guesses == ("the speed of replay",)
    assert guessed.status_inputs()["replayRatio"] == 0.5
    measured = plan(replace(PAPER, limit=0.0, replays=True, replay_ratio=0.02))
    assert measured.interval_s == pytest.approx(5 * guessed.interval_s, rel=0.15)
    assert measured.reason == (
        "Partial recovery with replay, a save every 14 h: expected overhead 1.46%. Trainers push again what a lost "
        "shard had learnt, at 0.02 s for each second of training. With longer intervals, failures would cost more time "
        "than saves, because more is pushed again."
    )
    assert "replayRatio" not in plan(PAPER).status_inputs()


def test_plan_with_parity_has_rare_saves_and_a_reason() -> None:
    without = replace(PAPER, limit=0.0, replays=True, replay_ratio=0.5)
    alone = replace(without, estimate=replace(SEEN, lost_per_failure=1.0))
    covered = plan(replace(alone, data_shards=1))
    assert covered.interval_s == pytest.approx(10**0.5 * plan(alone).interval_s, rel=0.2)
    assert "Parity gives back a lost shard, after all but 5% of failures." in covered.reason
    fast = replace(alone, replay_ratio=0.02)
    assert plan(replace(fast, data_shards=1)).interval_s == plan(fast).interval_s, "to push all of it again is cheap"
    two = replace(without, estimate=replace(SEEN, lost_per_failure=2.0), data_shards=1)
    assert two.uncovered == pytest.approx(2 / 7)
    assert plan(two).interval_s < covered.interval_s


@given(INPUTS)
def test_plan_with_parity_never_saves_more_often(inputs: Inputs) -> None:
    with_parity, without = (plan(replace(inputs, data_shards=k)).interval_s for k in (4, 0))
    left_s = inputs.odds.left_s
    assert min(with_parity, left_s) >= min(without, left_s) * (1 - 1e-9)


def test_remaining_budget_excludes_spent_and_reserved_portions() -> None:
    half = plan(replace(PAPER, spent=0.03, reserved=0.02))
    assert half.interval_s < plan(PAPER).interval_s
    assert half.interval_s == plan(replace(PAPER, limit=0.05)).interval_s
    assert plan(replace(PAPER, spent=0.07, reserved=0.03)).mode == "Full"


def test_plan_with_less_training_left_has_fewer_saves() -> None:
    late = replace(PAPER, saved_samples=PAPER.total_samples // 2)
    assert late.odds.left_s == pytest.approx(28 * HOUR)
    assert plan(late).interval_s > plan(PAPER).interval_s
    assert replace(PAPER, estimate=replace(SEEN, lost_per_failure=100.0)).odds.lost == 8, "there are no more shards"


def test_unknown_training_time_is_one_mtbf_and_named_as_a_guess() -> None:
    unknown = replace(PAPER, samples_per_s=None)
    assert unknown.odds.left_s == SEEN.mtbf_s
    assert unknown.guesses == ("the training time",)
    assert "Still guessed: the training time." in plan(unknown).reason
    assert "guessed" not in plan(PAPER).reason


@pytest.mark.parametrize(
    "change",
    [
        {"samples_per_s": None},
        {"samples_per_s": None, "limit": 0.0001},
        {"costs": Costs.measured(load_s=1.0, reschedule_s=1.0)},
        {"costs": Costs.measured(), "mode": "Full"},
    ],
)
def test_reason_has_no_percentage_before_measurements(change: dict[str, Any]) -> None:
    reason = plan(replace(PAPER, **change)).reason
    assert "expected overhead" not in reason
    assert "would cost" not in reason
    assert "Still guessed" in reason
    assert "expected overhead" in plan(PAPER).reason


def test_reason_has_no_failure_count_while_the_length_is_a_guess() -> None:
    known, unknown = plan(PAPER).reason, plan(replace(PAPER, samples_per_s=None)).reason
    assert "the remaining expected failures (2, of 4 shards each)" in known
    assert "of 4 shards each" not in unknown


@pytest.mark.parametrize(
    ("change", "guesses"),
    [
        (
            {"costs": Costs.measured(commit_s=1.0, load_s=1.0)},
            ("the cost of a save", "the start time of a new pod"),
        ),
        ({"estimate": prior(28 * HOUR, 4)}, ("the number of shards lost per failure",)),
        ({"estimate": after_failure(prior(28 * HOUR, 4), 4)}, ()),
    ],
)
def test_guesses_are_named(change: dict[str, Any], guesses: tuple[str, ...]) -> None:
    assert replace(PAPER, **change).guesses == guesses


@pytest.mark.parametrize(
    ("change", "mode", "says"),
    [
        ({}, "Partial", "the remaining expected failures (2, of 4 shards each) and their spread would exceed"),
        ({"mode": "Full"}, "Full", "The spec requires it."),
        ({"limit": 0.0}, "Full", "The budget allows no loss."),
        ({"spent": 0.1}, "Full", "The budget is used up."),
        ({"limit": 0.0001}, "Full", "save too little time"),
        ({"limit": 0.005, "mode": "Partial"}, "Partial", "a loss that exceeds the budget rolls the job back"),
        ({"estimate": prior(280 * HOUR, 4)}, "Partial", "the next failure, of 4 shards, would exceed"),
        ({"costs": Costs(3.0, 324.0, 240.0, 240.0)}, "Partial", "save less than 0.1% of the time"),
        ({"costs": Costs(0.001, 1e4, 9.0, 9.0), "mode": "Partial"}, "Partial", "each takes 2.78 h"),
        ({"fixed_interval_s": 30.0}, "Partial", "The interval is fixed."),
        ({"basis": "An AUC drop of 0.001 allows 0.1."}, "Partial", "An AUC drop of 0.001 allows 0.1."),
        ({"fixed_interval_s": 30.0, "limit": 0.0}, "Full", "The budget allows no loss."),
    ],
)
def test_plan_always_has_a_reason(change: dict[str, Any], mode: str, says: str) -> None:
    made = plan(replace(PAPER, **change))
    assert made.mode == mode
    assert says in made.reason
