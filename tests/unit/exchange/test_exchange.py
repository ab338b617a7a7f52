"""Lookups and pushes of a trainer over shards that work."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cpr_contract import env
from cpr_contract.codec import from_json
from cpr_contract.reports import ExitCode, Problem
from cpr_contract.spec import JobSpec
from cpr_contract.trace import TracedStep
from cpr_trainer.embedding.unique_rows import UniqueRows
from cpr_trainer.exchange import Exchange, PendingLookup
from cpr_trainer.exchange.link import Link
from cpr_trainer.process import run_role
from cpr_trainer.runtime import Trace
from support.exchanges import WAIT_S, Pair, follow, push, wait_for
from support.shard_job import KEY
from support.shard_thread import ShardThread


def test_a_lookup_sees_the_push_before_it(exchange: Exchange, pair: Pair, rows: UniqueRows) -> None:
    before = exchange.lookup(1, rows).result(WAIT_S).copy()
    push(exchange, rows, 1)
    after = exchange.lookup(2, rows).result(WAIT_S)
    np.testing.assert_allclose(after, before - 0.1, rtol=1e-6, atol=1e-6)
    exchange.settle(WAIT_S)
    assert exchange.applied() == (1, 1)
    del pair


def test_shard_reports_the_parts_of_the_time_of_each_step(
    exchange: Exchange, pair: Pair, rows: UniqueRows, tmp_path: Path
) -> None:
    trace = Trace(tmp_path / "steps")
    pair[0].do(lambda: setattr(pair[0].service, "trace", trace))
    for step in (1, 2):
        exchange.lookup(step, rows).result(WAIT_S)
        push(exchange, rows, step)
        exchange.settle(WAIT_S)
    pair[0].do(lambda: setattr(pair[0].service, "trace", Trace(None)))
    trace.close()
    first, second = map(TracedStep.of_line, (tmp_path / "steps").read_text().splitlines())
    assert (first.step, second.step) == (1, 2)
    assert second.stages_s.keys() == {"idle", "receive", "look up", "send", "apply", "rest"}
    assert sum(second.stages_s.values()) == pytest.approx(second.ended_s - first.ended_s, abs=1e-5)


def test_each_shard_gets_one_push_per_step_also_an_empty_one(exchange: Exchange, pair: Pair, rows: UniqueRows) -> None:
    only_first = rows.select(np.arange(len(rows)) < rows.bounds[1])
    push(exchange, only_first, 1)
    exchange.settle(WAIT_S)
    assert exchange.applied() == (1, 1)
    assert not pair[1].service.metrics.rows_changed._value.get()


def test_window_bounds_unacknowledged_pushes(exchange: Exchange, pair: Pair, rows: UniqueRows) -> None:
    pair[1].freeze()
    push(exchange, rows, 1)
    push(exchange, rows, 2)
    with pytest.raises(TimeoutError):
        push(exchange, rows, 3, timeout_s=0.1)
    with pytest.raises(TimeoutError):
        exchange.settle(0.1)
    pair[1].thaw()
    push(exchange, rows, 3)
    exchange.settle(WAIT_S)
    assert exchange.applied() == (3, 3)


def test_a_cut_is_announced_before_the_next_heartbeat(job: JobSpec, serve: Callable[..., ShardThread]) -> None:
    shards = serve(0), serve(1)
    with contextlib.closing(Exchange(job, 0, 1, KEY, 1000, clock=lambda: 0.0)) as exchange:
        follow(exchange, *shards)
        exchange.wait_ready(WAIT_S)
        exchange.announce_cut(17)
        for shard in shards:
            progress = shard.progress
            wait_for(lambda progress=progress: progress.cuts.pending == 17)


def test_a_lookup_may_be_waited_for_again(exchange: Exchange, pair: Pair, rows: UniqueRows) -> None:
    pair[1].freeze()
    pending: PendingLookup = exchange.lookup(1, rows)
    with pytest.raises(TimeoutError):
        pending.result(0.1)
    pair[1].thaw()
    assert pending.result(WAIT_S).shape == (len(rows), 4)


def test_failed_assertion_ends_the_process_with_its_text(
    exchange: Exchange, pair: Pair, rows: UniqueRows, tmp_path: Path
) -> None:
    def push_an_earlier_step() -> int:
        pair[1].freeze()  # the first push stays unacknowledged
        push(exchange, rows, 2)
        push(exchange, rows, 1)
        return ExitCode.OK

    message = tmp_path / "termination"
    assert run_role("trainer", push_an_earlier_step, {env.TERMINATION_FILE: str(message)}) == ExitCode.INTERNAL
    problem = from_json(Problem, message.read_bytes())
    assert (problem.reason, problem.message) == ("Internal", "AssertionError: step 1 is pushed after step 2")
    pair[1].thaw()


@pytest.mark.usefixtures("pair")
def test_failed_assertion_of_the_exchange_thread_is_raised_with_its_text(
    exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_link: Link, _now: float) -> None:
        raise AssertionError("a block is released twice")

    monkeypatch.setattr(Link, "tick", fail)
    wait_for(lambda: exchange._loop._failure is not None)
    with pytest.raises(RuntimeError, match="a block is released twice"):
        exchange.settle(WAIT_S)


def test_step_that_the_last_process_pushed_already_is_lost_once(
    job: JobSpec, exchange: Exchange, pair: Pair, rows: UniqueRows, serve: Callable[..., ShardThread]
) -> None:
    """A trainer is replaced, and then the shard, before the new trainer pushes the last step of the old one again."""
    for step in (1, 2):
        push(exchange, rows, step)
    exchange.settle(WAIT_S)
    successor = Exchange(job, 0, 2, KEY, 1000)
    try:
        follow(successor, *pair)
        successor.wait_ready(WAIT_S)
        restored = serve(0, 2)
        follow(successor, restored, pair[1], roster=2)
        successor.wait_ready(WAIT_S)
        push(successor, rows, 2)
        successor.settle(WAIT_S)
    finally:
        successor.close()
    of_a_step = int(rows.bounds[1])
    assert (restored.progress.row_updates.lost, restored.progress.row_updates.pushed) == (of_a_step, (2 * of_a_step,))
