"""`cprjob simulate`: its engine against a ticking clock and the operator's ledger, and results that docs quote."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from typer.testing import CliRunner

from cpr_operator import ledger as ledgers
from cpr_operator.api.sizes import recoverable
from cpr_operator.cli.app import app
from cpr_operator.policy import Costs
from cprjob_bench.simulation.engine import Decision, _Training, is_covered, run
from cprjob_bench.simulation.job import (
    DISTRIBUTIONS,
    FLUSH_AGE_S,
    HOUR_S,
    PAPER,
    PRODUCTION,
    STORM_FAILURES,
    STORM_GAP_S,
    Failure,
    Job,
    exponential,
    parse_trace,
    recorded,
)
from cprjob_bench.simulation.strategies import STRATEGIES, OpenLoop, cpr, full, partial_naive
from cprjob_bench.simulation.study import Summary, simulate, study

JOB = Job(100.0, 4, 2, 50.0, 0.2, Costs(1.0, 3.0, 2.0, 2.0), 50.0, 2.0)
QUICKSTART = str(Path(__file__).parents[3] / "examples" / "quickstart.yaml")

# --- the engine


def failures_of(pairs: Sequence[tuple[float, int]]) -> Iterator[Failure]:
    return iter([Failure(gap, lost) for gap, lost in pairs])


class Recorder(random.Random):
    """Records the shards that it drew."""

    last: list[int]

    def sample(self, population: range, k: int) -> list[int]:  # type: ignore[override]
        self.last = super().sample(population, k)
        return self.last


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("train"), st.integers(0, 40), st.integers(3, 40)),
            st.tuples(st.just("fail"), st.integers(1, 4), st.integers(0, 1)),
        ),
        max_size=30,
    )
)
@example([("train", 10, 5), ("fail", 2, 0), ("train", 1, 5), ("fail", 3, 0), ("train", 20, 5), ("fail", 4, 1)])
@example([("train", 9, 40), ("fail", 2, 0), ("train", 3, 40), ("fail", 2, 0), ("fail", 1, 1)])
def test_engine_charges_as_the_operators_ledger(steps: list[tuple[str, int, int]]) -> None:
    job, rng = replace(JOB, total_s=1000.0, limit=0.02), Recorder(1)
    training = _Training(job)
    book = ledgers.Ledger(total=1000, limit=ledgers.limit_of(job.limit, 1000, job.shards), lost=((),) * job.shards)
    for kind, first, second in steps:
        if kind == "train":
            training.advance(float(first), float(second))
            continue
        rng.last = list(range(first))
        now, saved, before = int(training.now), int(training.saved), training.out.rollbacks
        training.fail(first, rng, rolls_back=bool(second), promise=True)
        after = book
        for shard in rng.last:
            after = ledgers.add(after, shard, ((saved, now),))
        rolls_back = bool(second) or not ledgers.fits(book, 0, after.spent - book.spent).fits
        assert training.out.rollbacks - before == rolls_back
        book = ledgers.rolled_back(book, saved) if rolls_back else after
        assert training.out.spent_s == pytest.approx(book.spent)


PARTIAL = Decision(full=False, interval_s=10.0)
REPLAY = PARTIAL._replace(replays=True)
PARITY = PARTIAL._replace(parity=True)
BOTH = REPLAY._replace(parity=True)


@pytest.mark.parametrize(
    ("limit", "decision", "promise", "failure", "expected"),
    [
        # (rollbacks, seconds trained again or waited, seconds charged); saves commit 3 s after their cut.
        pytest.param(0.9, PARTIAL, False, (22.0, 3), (0, 0.0, 3 * 12), id="cut-20-not-committed"),
        pytest.param(0.9, PARTIAL, False, (23.0, 3), (0, 0.0, 3 * 3), id="cut-20-committed"),
        pytest.param(
            0.2, PARTIAL._replace(interval_s=50), True, (45.0, 2), (1, 45.0, 0.0), id="over-budget-rolls-back"
        ),
        pytest.param(
            0.2, PARTIAL._replace(interval_s=50), False, (45.0, 2), (0, 0.0, 90.0), id="no-promise-overspends"
        ),
        pytest.param(0.0, REPLAY, False, (36.0, 2), (0, 1.5, 0.0), id="replay-waits-a-quarter-of-6-s"),
        pytest.param(0.2, PARITY, False, (36.0, 1), (0, 0.0, FLUSH_AGE_S), id="parity-loses-since-its-flush"),
        pytest.param(0.2, PARITY, False, (36.0, 4), (0, 0.0, 4 * 6.0), id="whole-ring-lost-goes-back-to-its-save"),
        pytest.param(0.0, BOTH, False, (36.0, 1), (0, 0.25 * FLUSH_AGE_S, 0.0), id="parity-and-replay"),
    ],
)
def test_engine_accounts_for_a_failure(
    limit: float,
    decision: Decision,
    promise: bool,  # noqa: FBT001
    failure: tuple[float, int],
    expected: tuple[int, float, float],
) -> None:
    job = replace(JOB, limit=limit, replay=0.25)
    out = run(job, OpenLoop(decision, promise=promise), failures_of([failure]), random.Random(0))
    assert (out.rollbacks, out.lost_s, out.spent_s) == expected
    assert out.flushing_s == (JOB.total_s if decision.parity else 0.0)


@pytest.mark.parametrize(("shards", "k", "lost"), [(8, 1, 2), (8, 1, 4), (18, 4, 2), (9, 2, 3), (4, 3, 1), (8, 4, 2)])
def test_engine_parity_covers_what_the_operator_recovers(shards: int, k: int, lost: int) -> None:
    job = replace(JOB, shards=shards, data_shards=k)
    for seed in range(200):
        drawn = random.Random(seed).sample(range(shards), lost)
        recovered = all(recoverable(shard, {*drawn} - {shard}, shards, k) for shard in drawn)
        assert is_covered(job, lost, random.Random(seed)) == recovered, drawn


# --- failures


@pytest.mark.parametrize(("kind", "variation"), [("exponential", 1.0), ("gamma", 2**0.5), ("storms", 2.6)])
def test_distribution_has_the_jobs_mean_and_its_own_spread(kind: str, variation: float) -> None:
    drawn = list(islice(DISTRIBUTIONS[kind](PAPER, random.Random(1)), 20_000))
    assert {failure.lost for failure in drawn} == {PAPER.lost}
    gaps = [failure.gap_s for failure in drawn]
    assert fmean(gaps) == pytest.approx(PAPER.mtbf_s, rel=0.05)
    assert stdev(gaps) / fmean(gaps) == pytest.approx(variation, rel=0.05)
    if kind == "storms":
        assert [gap == STORM_GAP_S for gap in gaps[:8]] == ([False] + [True] * (STORM_FAILURES - 1)) * 2


def test_trace_is_replayed_as_recorded() -> None:
    times = parse_trace("# hours shards\n 1\n\n2.5 3  # a rack\n2.5\n")
    assert list(recorded(times)(PAPER, random.Random(0))) == [(HOUR_S, 4), (1.5 * HOUR_S, 3), (0.0, 4)]


# --- the results that the pages quote


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
    # cpr: one lost shard per failure, as in the published overhead, though this job loses four.
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
def test_overhead_in_the_papers_emulation(strategy: str, low: float, high: float) -> None:
    found = paper()[strategy]
    assert low <= overhead(found) <= high
    assert overhead(found) == pytest.approx(found.save + found.load + found.lost + found.reschedule)


@pytest.mark.parametrize(
    ("strategy", "saved"), [("cpr", 0.91), ("cpr_closed_loop", 0.8), ("cpr_closed_loop_async", 0.91)]
)
def test_overhead_in_the_papers_production_run(strategy: str, saved: float) -> None:
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
    job = replace(PAPER, told_mtbf_s=PAPER.mtbf_s * wrong)
    found = simulate(job, STRATEGIES["cpr_closed_loop"], DISTRIBUTIONS[kind], 300, seed=2)
    assert found.over_budget == 0
    assert found.pls.mean > 0


@pytest.mark.parametrize(("name", "saves"), [("none", 0), ("full", 24), ("partial_naive", 24), ("cpr", 1)])
def test_job_without_failures_costs_its_saves(name: str, saves: int) -> None:
    """56 h at an interval of 2.245 h or 44.8 h; the last cut is the model."""
    found = simulate(PAPER, STRATEGIES[name], lambda _job, _rng: iter(()), 2, seed=1)
    assert overhead(found) == found.save == pytest.approx(saves * 5.4 / 60 / 56)
    assert (found.load, found.lost, found.reschedule, found.pls.max, found.rollbacks) == (0, 0, 0, 0, 0)


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
