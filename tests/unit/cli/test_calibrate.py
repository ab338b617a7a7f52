from __future__ import annotations

import io
import itertools
import math
import random
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.progress import Progress

from cpr_contract.codec import to_json
from cpr_contract.reports import Problem
from cpr_contract.requests import Experiment, Outcome, TrialReport
from cpr_operator.api.snapshots_spec import AccuracyBudget, AucDrop
from cpr_operator.api.validate import parse_spec
from cpr_operator.cli.calibrate import as_json, plot, print_calibration
from cpr_operator.cli.command_errors import OptionError, TrialError
from cpr_operator.cli.sensitivity import (
    Design,
    Pair,
    Sensitivity,
    design,
    draw_losses,
    measure,
    pair_runs,
    parse_levels,
    round_up,
)
from cpr_operator.cli.trainer_process import failure_message, trial_progress
from support.documents import edited

PLS = AccuracyBudget(portion_of_lost_samples=0.1)
AUC = AccuracyBudget(type="AUCDrop", auc_drop=AucDrop(limit=0.001, sensitivity=0.5))


def a_pair(seed: int, pls: float, drop: float) -> Pair:
    return Pair(seed, level=pls, pls=pls, auc=0.8 - drop, auc_drop=drop, log_loss_rise=2 * drop, lost_row_updates=1)


def found(low: float, high: float) -> Sensitivity:
    return Sensitivity((low + high) / 2, low, high, worst=2 * high, seeds=3)


# --- which runs


@given(
    level=st.floats(1e-4, 0.5),
    shards=st.integers(1, 40),
    seed=st.integers(0, 2**32),
)
def test_drawn_losses_add_up_to_the_level_without_overlap(level: float, shards: int, seed: int) -> None:
    losses = draw_losses(level, shards, random.Random(seed))
    portions = [len(loss.shards) / shards * (loss.at - loss.back_to) for loss in losses]
    assert math.fsum(portions) == pytest.approx(level, abs=1e-9)
    assert all(0 <= loss.back_to < loss.at <= 1 for loss in losses)
    assert all(first.at <= second.back_to + 1e-12 for first, second in itertools.pairwise(losses))
    for loss in losses:
        assert len(set(loss.shards)) == len(loss.shards) == math.ceil(shards / 2)
        assert set(loss.shards) <= set(range(shards))


def test_drawn_losses_cover_all_times_and_shards() -> None:
    rng = random.Random(0)
    drawn = [draw_losses(0.1, 4, rng) for _ in range(400)]
    assert {shard for losses in drawn for loss in losses for shard in loss.shards} == {0, 1, 2, 3}
    firsts, lasts = ([losses[n].at for losses in drawn] for n in (0, -1))
    assert min(firsts) < 0.13
    assert max(lasts) > 0.97
    # The middle of each of two ordered uniform points on what the ages (0.1 each) leave of the run.
    assert statistics.fmean(firsts) == pytest.approx(0.1 + 0.8 / 3, abs=0.03)
    assert statistics.fmean(lasts) == pytest.approx(0.2 + 0.8 * 2 / 3, abs=0.03)


def test_design_has_per_seed_a_run_without_losses_and_one_per_level() -> None:
    planned = design((0.05, 0.2), range(7, 9), shards=3)
    assert planned.runs == ((7, 0.0), (7, 0.05), (7, 0.2), (8, 0.0), (8, 0.05), (8, 0.2))
    trials = planned.experiment.trials
    assert [trial.seed for trial in trials] == [seed for seed, _ in planned.runs]
    assert [bool(trial.losses) for trial in trials] == [level > 0 for _, level in planned.runs]
    assert planned == design((0.05, 0.2), range(7, 9), shards=3)
    assert trials[1].losses != trials[4].losses, "every seed has failures of its own"


def test_parse_levels_sorts() -> None:
    assert parse_levels("0.2, 0.05,0.2") == (0.05, 0.2)
    for text in ("", "a,b", "0,0.1", "0.6", "-0.1", "nan"):
        with pytest.raises(OptionError, match="--levels"):
            parse_levels(text)


# --- the slope


def test_sensitivity_is_a_slope_through_the_origin_with_students_interval_over_seeds() -> None:
    pairs = [a_pair(seed, pls, slope * pls) for seed, slope in ((1, 1.0), (2, 2.0), (3, 6.0)) for pls in (0.1, 0.3)]
    result = measure(pairs)
    assert result.estimate == pytest.approx(3.0)
    # t of 2 degrees of freedom at 97.5 %: 4.3027; standard error sqrt(7 / 3).
    assert result.high - result.estimate == pytest.approx(4.3027 * math.sqrt(7 / 3), rel=1e-4)
    assert result.estimate - result.low == pytest.approx(result.high - result.estimate)
    assert result.worst == pytest.approx(6.0)
    assert result.seeds == 3
    assert not result.distinguishable
    # The slope of a seed is the sum of its drops over its lost samples.
    uneven = [a_pair(1, 0.1, 0.01), a_pair(1, 0.3, 0.09), a_pair(2, 0.2, 0.05)]
    assert measure(uneven).estimate == pytest.approx((0.1 / 0.4 + 0.25) / 2)
    assert measure(uneven).worst == pytest.approx(0.3)


def test_sensitivity_to_paste_is_the_upper_end_rounded_up() -> None:
    assert found(0.01, 0.01234).to_paste == 0.013
    assert found(-0.01, 0.002).to_paste == 0.002
    assert found(-0.03, -0.01).to_paste is None
    assert found(0.01, 0.02).distinguishable
    assert not found(-0.01, 0.02).distinguishable


@given(st.floats(1e-9, 1e6))
def test_round_up_is_never_below_and_not_far_above(value: float) -> None:
    rounded = round_up(value)
    assert value * (1 - 1e-9) <= rounded <= value * 1.1
    assert round_up(rounded) == rounded


# --- from outcomes to pairs


def an_outcome(auc: float | None, pls: float) -> Outcome:
    return Outcome(auc, log_loss=None if auc is None else 1 - auc, lost_sample_shards=1, pls=pls, lost_row_updates=9)


def planned_runs(*runs: tuple[int, float]) -> Design:
    return Design(runs, Experiment(2, ()))


def test_pair_runs_compares_runs_of_one_seed() -> None:
    planned = planned_runs((1, 0.0), (1, 0.1), (2, 0.0), (2, 0.1))
    outcomes = tuple(an_outcome(*each) for each in ((0.8, 0.0), (0.7, 0.1), (0.6, 0.0), (0.65, 0.11)))
    first, second = pair_runs(planned, outcomes)
    assert (first.seed, first.pls, first.auc) == (1, 0.1, 0.7)
    assert first.auc_drop == pytest.approx(0.1)
    assert first.log_loss_rise == pytest.approx(0.1)
    assert (second.seed, second.pls, second.auc_drop) == (2, 0.11, pytest.approx(-0.05))


@pytest.mark.parametrize(
    ("outcomes", "says"),
    [
        ((an_outcome(None, 0.0), an_outcome(0.5, 0.1)), "AUC is not defined"),
        ((an_outcome(0.5, 0.0), an_outcome(0.5, 0.0)), "too short to lose a fraction of 0.1"),
    ],
)
def test_pair_runs_raises_for_incomparable_runs(outcomes: tuple[Outcome, ...], says: str) -> None:
    with pytest.raises(TrialError, match=says):
        pair_runs(planned_runs((1, 0.0), (1, 0.1)), outcomes)


def test_trial_progress_without_a_bar_prints_a_line_per_finished_run() -> None:
    console = Console(file=io.StringIO(), width=100)
    on_report = trial_progress(Progress(console=console, disable=True), planned_runs((1, 0.0), (1, 0.1)).names)
    on_report(TrialReport(0, 50, 100, None))
    on_report(TrialReport(0, 100, 100, an_outcome(0.75, 0.0)))
    on_report(TrialReport(1, 100, 100, an_outcome(0.74, 0.1)))
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines() == [
        "run 1 of 2: seed 1, no losses, AUC 0.75000",
        "run 2 of 2: seed 1, PLS 0.1, AUC 0.74000",
    ]


@pytest.mark.parametrize(
    ("termination_message", "says"),
    [
        (None, "exit code -9\nlast\nwords"),
        ("not JSON", "exit code -9\nlast\nwords"),
        (to_json(Problem("Internal", "KeyError: 3", "See the log.")), "exit code -9\nlast\nwords"),
        (to_json(Problem("BadData", "Line 3 is short.", "Correct it.")), "Line 3 is short. Correct it."),
    ],
)
def test_failure_message_is_the_termination_message_or_the_log(
    tmp_path: Path, termination_message: str | None, says: str
) -> None:
    termination, log = tmp_path / "termination", tmp_path / "log"
    if termination_message is not None:
        termination.write_text(termination_message, "utf-8")
    log.write_text("last\nwords\n", "utf-8")
    assert failure_message(termination, log, -9).endswith(says)


# --- output


def printed(result: Sensitivity, budget: AccuracyBudget) -> str:
    console = Console(file=io.StringIO(), width=120)
    print_calibration(console, [a_pair(1, 0.1, 0.002), a_pair(2, 0.1, 0.004)], result, budget)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_calibration_prints_lines_for_the_manifest() -> None:
    text = printed(found(0.01, 0.0199), AUC)
    assert "accuracyBudget: {type: AUCDrop, aucDrop: {limit: 0.001, sensitivity: 0.02}}" in text
    assert "0.0150 " not in text
    assert "95% interval 0.01 to 0.02, over 3 seeds" in text
    assert "limit of 0.001 allows 0.05 of all samples to be lost" in text
    assert "+0.00300" in text
    assert "+0.0300" in text
    assert "not distinguishable" not in text
    pasted = {"type": "AUCDrop", "aucDrop": {"limit": 0.001, "sensitivity": 0.02}}
    assert parse_spec(edited({"spec.accuracyBudget": pasted})["spec"]).accuracy_budget.portion == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("low", "high", "message"),
    [
        (0.01, 0.0199, "portionOfLostSamples of 0.1 amounts to an AUC drop of 0.002"),
        (-0.01, 0.02, "not distinguishable from 0"),
        (-0.01, 0.02, "sensitivity: 0.02"),
        (-0.02, -0.01, "no value to paste"),
    ],
)
def test_calibration_remarks_on_slopes_of_any_sign(low: float, high: float, message: str) -> None:
    text = printed(found(low, high), PLS)
    assert message in text
    assert ("sensitivity: " in text) is (high > 0)


def test_json_has_every_pair_and_the_sensitivity() -> None:
    pairs = [a_pair(1, 0.1, 0.002), a_pair(2, 0.1, 0.004)]
    answer = as_json("ads", 8, pairs, found(-0.02, -0.01))
    assert answer["pairs"][1]["auc_drop"] == 0.004
    assert answer["sensitivity"]["distinguishable"] is False
    assert answer["sensitivity_to_paste"] is None
    assert (answer["job"], answer["shards"], answer["failures_per_run"]) == ("ads", 8, 2)


def test_plot_is_an_image(tmp_path: Path) -> None:
    pairs = [a_pair(1, 0.1, 0.002), a_pair(2, 0.1, 0.004)]
    plot(tmp_path / "out.png", pairs, found(0.01, 0.02), "ads")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
