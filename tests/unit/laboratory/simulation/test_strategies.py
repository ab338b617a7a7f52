from __future__ import annotations

import math

import pytest

from cprjob_bench.simulation.job import HOUR_S
from cprjob_bench.simulation.presets import PAPER
from cprjob_bench.simulation.strategies import STRATEGIES, ClosedLoop, cpr, full, none, partial_naive


def test_open_loops_decide_once() -> None:
    assert none(PAPER).decide(0.0, 0.0).interval_s == math.inf
    assert full(PAPER).decide(0.0, 0.0).interval_s / HOUR_S == pytest.approx(2.245, abs=0.001)
    assert full(PAPER).decide(0.0, 0.0).full
    naive = partial_naive(PAPER).decide(0.0, 0.0)
    assert naive.interval_s == full(PAPER).decide(0.0, 0.0).interval_s
    assert not naive.full
    # One lost shard per failure, as in the published overhead, though this job loses four.
    assert cpr(PAPER).decide(0.0, 0.0).interval_s / HOUR_S == pytest.approx(44.8)
    assert not any(make(PAPER).promise for make in (none, full, partial_naive, cpr))


def test_the_closed_loop_learns() -> None:
    loop = ClosedLoop(PAPER)
    assert loop.promise
    first = loop.decide(PAPER.budget_s, PAPER.total_s)
    loop.failed(4)
    assert loop.decide(PAPER.budget_s, PAPER.total_s).interval_s < first.interval_s
    loop.quiet(1000 * HOUR_S)
    assert loop.decide(PAPER.budget_s, PAPER.total_s).interval_s > first.interval_s
    assert ClosedLoop(PAPER).decide(PAPER.budget_s / 2, PAPER.total_s).interval_s < first.interval_s
    assert loop.decide(0.0, PAPER.total_s).full
    assert set(STRATEGIES) == {"none", "full", "partial_naive", "cpr", "cpr_closed_loop", "replay"}
