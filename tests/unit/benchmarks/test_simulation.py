"""`cprjob simulate`: its engine compared with a ticking clock and the ledger, and the results in the pages."""

from __future__ import annotations

import json
import random
from dataclasses import astuple, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cpr_operator.cli.app import app
from cprjob_bench.simulation.recovery_strategies import STRATEGIES, cpr, full, partial_naive
from cprjob_bench.simulation.simulated_job import (
    DISTRIBUTIONS,
    HOUR_S,
    PAPER,
    PRODUCTION,
    exponential,
    parse_trace,
    recorded,
)
from cprjob_bench.simulation.study import Summary, simulate, study

QUICKSTART = str(Path(__file__).parents[3] / "examples" / "quickstart.yaml")

# --- the engine


# --- failures


def test_trace_is_replayed_as_recorded() -> None:
    times = parse_trace("# hours shards\n 1\n\n2.5 3  # a rack\n2.5\n")
    assert list(recorded(times)(PAPER, random.Random(0))) == [(HOUR_S, 4), (1.5 * HOUR_S, 3), (0.0, 4)]


# --- results in the pages


@cache
def paper() -> dict[str, Summary]:
    return study(PAPER, exponential, 1500, seed=1, asynchronous=PAPER.asynchronous)


@cache
def production() -> dict[str, Summary]:
    return study(PRODUCTION, exponential, 1500, seed=1, asynchronous=PRODUCTION.asynchronous)


def overhead(summary: Summary) -> float:
    assert summary.overhead is not None
    return summary.overhead.mean


def test_open_loops_save_at_the_published_intervals() -> None:
    intervals = [make(PAPER).decide(0.0, 0.0).interval_s / HOUR_S for make in (full, partial_naive, cpr)]
    # cpr assumes one lost shard per failure, as in the published overhead, although this job loses four.
    assert intervals == [pytest.approx(2.245, abs=0.001), pytest.approx(2.245, abs=0.001), pytest.approx(44.8)]


@pytest.mark.parametrize(
    ("strategy", "low", "high"),
    [
        ("full", 0.082, 0.087),
        ("partial_naive", 0.042, 0.046),
        ("cpr", 0.0055, 0.0070),
        ("cpr_closed_loop", 0.020, 0.027),
        ("cpr_closed_loop_async", 0.005, 0.007),
    ],
)
def test_overhead_is_that_of_the_papers_emulation(strategy: str, low: float, high: float) -> None:
    found = paper()[strategy]
    assert low <= overhead(found) <= high
    assert overhead(found) == pytest.approx(found.save + found.load + found.lost + found.reschedule)


def test_goodput_has_the_same_time_and_pushing_again_is_part_of_a_recovery() -> None:
    for name in ("full", "replay", "replay_parity"):
        found, time = paper()[name], paper()[name].time
        assert time is not None
        assert sum(astuple(time)) == pytest.approx(1)
        # The mean of 1 / (1 + overhead) is at least that of the mean overhead.
        assert 1 / (1 + overhead(found)) <= time.productive < 1
        assert (time.repeated > 0) is (name == "full")
        assert time.recovering > (found.load + found.reschedule) * time.productive or name == "full"


@pytest.mark.parametrize(
    ("strategy", "saved"), [("cpr", 0.91), ("cpr_closed_loop", 0.8), ("cpr_closed_loop_async", 0.91)]
)
def test_overhead_is_that_of_the_papers_production_run(strategy: str, saved: float) -> None:
    assert 1 - overhead(production()[strategy]) / overhead(production()["full"]) > saved


def test_open_loop_overspends_and_closed_loop_does_not() -> None:
    assert paper()["cpr"].over_budget > 0.5
    assert paper()["cpr"].pls.mean == pytest.approx(0.27, abs=0.02)
    for name in ("cpr_closed_loop", "cpr_closed_loop_async"):
        assert paper()[name].over_budget == production()[name].over_budget == 0
        assert paper()[name].pls.max <= PAPER.limit * (1 + 1e-9)


@pytest.mark.parametrize("kind", sorted(DISTRIBUTIONS))
@pytest.mark.parametrize("wrong", [0.1, 10.0])
def test_closed_loop_holds_its_budget_in_storms_and_with_wrong_estimates(kind: str, wrong: float) -> None:
    job = replace(PAPER, assumed_mtbf_s=PAPER.mtbf_s * wrong)
    found = simulate(job, STRATEGIES["cpr_closed_loop"], DISTRIBUTIONS[kind], 300, seed=2)
    assert found.over_budget == 0
    assert found.pls.mean > 0


# --- the command


def test_simulate_prints_every_strategy_and_draws_them(tmp_path: Path) -> None:
    arguments = ["simulate", "--json", "--runs", "5", "--plot", str(tmp_path / "paper.png")]
    results = [CliRunner().invoke(app, [*arguments, "--seed", seed]) for seed in ("3", "3", "4")]
    assert [result.exit_code for result in results] == [0, 0, 0]
    one, same, other = (json.loads(result.stdout) for result in results)
    assert one == same != other
    assert (one["preset"], one["runs"]) == ("paper", 5)
    assert {*one["strategies"]} == {*STRATEGIES} | {f"{name}_async" for name in STRATEGIES if name != "none"}
    assert (tmp_path / "paper.png").read_bytes().startswith(b"\x89PNG")
    people = CliRunner().invoke(app, ["simulate", "--runs", "5", "--file", QUICKSTART, "--hours", "10"])
    assert (people.exit_code, "5 jobs of 10 h on 2 shards" in people.stdout) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--failures", "weekly"], "not one of exponential, gamma, storms, trace:FILE"),
        (["--failures", "trace:{file}"], "takes more than the job's 8 shards"),
        (["--preset", "paper", "--file", QUICKSTART], "not both"),
        (["--preset", "scale", "--shards", "8"], "remove --shards"),
        (["--plot", "picture.txt"], "must end in"),
    ],
)
def test_simulate_refuses_mistakes(tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "trace").write_text("1 9")
    arguments = [each.format(file=tmp_path / "trace") for each in arguments]
    result: Any = CliRunner().invoke(app, ["simulate", *arguments])
    assert (result.exit_code, message in " ".join(result.output.split())) == (2, True), result.output
