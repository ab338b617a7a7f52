"""The figures that the simulator is there to show; failures are seeded, so they are the same each time."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from cprjob_bench.simulation.job import (
    ASYNC_STALL_S,
    DISTRIBUTIONS,
    HOUR_S,
    PAPER,
    PRODUCTION,
    SCALES,
    at_scale,
    exponential,
)
from cprjob_bench.simulation.strategies import STRATEGIES
from cprjob_bench.simulation.study import Summary, as_json, simulate, study

RUNS = 1500


@cache
def paper() -> dict[str, Summary]:
    return study(PAPER, exponential, RUNS, seed=1, asynchronous=PAPER.asynchronous)


@cache
def production() -> dict[str, Summary]:
    return study(PRODUCTION, exponential, RUNS, seed=1, asynchronous=PRODUCTION.asynchronous)


def mean(summary: Summary) -> float:
    assert summary.overhead is not None
    return summary.overhead.mean


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
def test_the_papers_emulation(strategy: str, low: float, high: float) -> None:
    assert low <= mean(paper()[strategy]) <= high


def test_the_papers_production_run() -> None:
    full = mean(production()["full"])
    assert 1 - mean(production()["cpr"]) / full > 0.91
    assert 1 - mean(production()["cpr_closed_loop"]) / full > 0.8
    assert 1 - mean(production()["cpr_closed_loop_async"]) / full > 0.91


def test_the_open_loop_overspends_and_the_closed_one_never_does() -> None:
    assert paper()["cpr"].over_budget > 0.5
    assert paper()["cpr"].pls.mean == pytest.approx(0.27, abs=0.02)
    for name in ("cpr_closed_loop", "cpr_closed_loop_async"):
        assert paper()[name].over_budget == production()[name].over_budget == 0
        assert paper()[name].pls.max <= PAPER.limit * (1 + 1e-9)


@pytest.mark.parametrize("kind", sorted(DISTRIBUTIONS))
@pytest.mark.parametrize("wrong", [0.1, 1.0, 10.0])
def test_the_promise_survives_storms_and_wrong_estimates(kind: str, wrong: float) -> None:
    job = replace(PAPER, told_mtbf_s=PAPER.mtbf_s * wrong)
    found = simulate(job, STRATEGIES["cpr_closed_loop"], DISTRIBUTIONS[kind], 300, seed=2)
    assert found.over_budget == 0
    assert found.pls.mean > 0


@pytest.mark.parametrize(("name", "saves"), [("none", 0), ("full", 24), ("partial_naive", 24), ("cpr", 1)])
def test_without_failures_a_job_costs_exactly_its_saves(name: str, saves: int) -> None:
    """56 h at an interval of 2.245 h or 44.8 h; the last cut is the model."""
    found = simulate(PAPER, STRATEGIES[name], lambda _job, _rng: iter(()), 2, seed=1)
    assert mean(found) == found.save == pytest.approx(saves * 5.4 / 60 / 56)
    assert (found.load, found.lost, found.reschedule, found.pls.max, found.rollbacks) == (0, 0, 0, 0, 0)


def test_the_parts_add_up() -> None:
    for found in paper().values():
        parts = found.save + found.load + found.lost + found.reschedule
        assert mean(found) == pytest.approx(parts)
        assert found.load == found.reschedule


def test_all_strategies_see_the_same_failures() -> None:
    """Those that never train anything again see the same number of them."""
    assert paper()["partial_naive"].load == paper()["cpr"].load == paper()["cpr_async"].load


def test_another_seed_other_failures() -> None:
    make = STRATEGIES["cpr_closed_loop"]
    one, same, other = (simulate(PAPER, make, exponential, 50, seed) for seed in (1, 1, 2))
    assert one == same != other


def test_asynchronous_saves_stall_for_moments_and_commit_later() -> None:
    costs = PAPER.asynchronous.costs
    assert costs.save_stall_s == ASYNC_STALL_S
    assert costs.commit_s == PAPER.costs.save_stall_s


def test_failures_grow_with_the_job() -> None:
    jobs = [at_scale(PAPER, shards) for shards in SCALES]
    assert jobs[0] == PAPER
    assert [job.shards * job.mtbf_s for job in jobs] == pytest.approx([8 * 28 * HOUR_S] * len(SCALES))


def test_json_is_what_was_agreed() -> None:
    figures = as_json(paper())
    assert set(figures) == {
        *("none", "full", "partial_naive", "cpr", "cpr_closed_loop", "replay", "parity", "replay_parity"),
        *("full_async", "partial_naive_async", "cpr_async", "cpr_closed_loop_async", "replay_async"),
        *("parity_async", "replay_parity_async"),
    }
    for strategy in figures.values():
        assert set(strategy) == {
            *("overhead_mean", "overhead_p95", "pls_mean", "pls_max", "over_budget_share", "rollbacks_mean"),
            *("save", "load", "lost", "reschedule"),
        }


def test_an_overhead_without_an_end_is_null() -> None:
    hopeless = replace(PAPER, mtbf_s=60.0, total_s=10 * HOUR_S)
    found = simulate(hopeless, STRATEGIES["none"], exponential, 1, seed=1)
    assert found.overhead is None
    assert as_json({"none": found})["none"]["overhead_mean"] is None


def test_flushes_to_parity_cost_their_portion_of_the_time() -> None:
    none, job = replace(PAPER, parity_cost=0.0), replace(PAPER, parity_cost=0.01)
    for name, cost in (("replay_parity", 0.01), ("parity", 0.01), ("replay", 0.0)):
        free, found = (simulate(each, STRATEGIES[name], exponential, 20, 0) for each in (none, job))
        assert found.save - free.save == pytest.approx(cost, rel=0.01)
        assert found.overhead is not None
        assert free.overhead is not None
        assert found.overhead.mean - free.overhead.mean == pytest.approx(cost, rel=0.01)
