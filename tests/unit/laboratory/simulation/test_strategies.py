from __future__ import annotations

import math
from dataclasses import replace

import pytest

from cprjob_bench.simulation.job import HOUR_S, PAPER
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
    assert set(STRATEGIES) == {
        "none",
        "full",
        "partial_naive",
        "cpr",
        "cpr_closed_loop",
        "replay",
        "parity",
        "replay_parity",
    }


def test_with_parity_saves_are_for_what_it_does_not_give_back() -> None:
    job = replace(PAPER, lost=1, told_lost=1.0)
    alone, both = (STRATEGIES[name](job).decide(job.budget_s, job.total_s) for name in ("parity", "replay_parity"))
    assert (alone.parity, alone.replays, both.parity, both.replays) == (True, False, True, True)
    replaying = STRATEGIES["replay"](job).decide(job.budget_s, job.total_s)
    assert not replaying.parity
    # One failure in twenty: the law's square root of it.
    assert both.interval_s > replaying.interval_s
    assert alone.interval_s > STRATEGIES["cpr_closed_loop"](job).decide(job.budget_s, job.total_s).interval_s
    # Of four lost of eight two are neighbours nearly always.
    crowd = STRATEGIES["replay_parity"](replace(PAPER, data_shards=4)).decide(PAPER.budget_s, PAPER.total_s)
    assert crowd.interval_s == STRATEGIES["replay"](PAPER).decide(PAPER.budget_s, PAPER.total_s).interval_s
