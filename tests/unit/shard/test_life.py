"""The life of a shard against a restorer and a saver that do what the test says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any, cast

import pytest

from cpr_contract.exits import ExitCode, Problem
from cpr_contract.reports import SaveRef, ShardState
from cpr_contract.roster import Counters, ShardRoster
from cpr_trainer.placement import Placement
from cpr_trainer.shard.life import TERMINATED, Ending, Life
from cpr_trainer.shard.metrics import Metrics
from cpr_trainer.shard.restore import BelowFloor, NothingVerifies, Outcome, Restored, Restorer
from cpr_trainer.shard.saver import Committed, Copy, SaveFailed, Saver
from cpr_trainer.shard.service import Service
from cpr_trainer.tables.arena import Arena
from support.shard_job import shard_roster, small_job

SAVE = SaveRef("the key", 4, 40)
RESTORED = Restored(SAVE, 4, 40, (4,), (), 0.1)
WAIT_S = 20.0


class FakeRestorer:
    """Answers what the test puts; remembers the rosters it was asked under."""

    def __init__(self) -> None:
        self.rosters: list[ShardRoster] = []
        self.answers: SimpleQueue[Outcome | Exception] = SimpleQueue()

    def restore(self, roster: ShardRoster, _cancel: threading.Event) -> Outcome:
        self.rosters.append(roster)
        answer = self.answers.get(timeout=WAIT_S)
        if isinstance(answer, Exception):
            raise answer
        return answer


class FakeSaver:
    """Keeps what it is given; the test says when it is committed."""

    def __init__(self) -> None:
        self.copies: list[Copy] = []
        self.idle = True

    def submit(self, copy: Copy) -> None:
        self.copies.append(copy)
        self.idle = False

    def discard(self) -> None:
        self.copies.clear()


class Bench:
    def __init__(self, **roster: Any) -> None:
        job = small_job(Path("unused"))
        placement = Placement.of(job.model, 1)
        self.service = Service(job, placement, 0, Arena.empty(job, 80), Metrics())
        self.restorer, self.saver = FakeRestorer(), FakeSaver()
        self.life = Life(job, shard_roster(**roster), self.service, Metrics())
        self.life.begin(cast(Restorer, self.restorer), cast(Saver, self.saver))

    def follow(self, number: int, generation: int = 1, **changes: Any) -> Ending | None:
        return self.life.follow(shard_roster(counters=Counters(number, 1, generation), **changes))

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline
            self.life.read_mail()
            time.sleep(0.005)

    def answer(self, outcome: Outcome, state: ShardState) -> None:
        self.restorer.answers.put(outcome)
        self.until(lambda: self.life.state is state)

    def push(self, *steps: int) -> None:
        """As if these steps had been pushed."""
        progress = self.service.progress
        assert progress is not None
        for step in steps:
            progress.losses = replace(progress.losses, first_steps=(progress.losses.first_steps[0] or step,))
            progress.applied, progress.dirty, progress.total_samples = (step,), True, 1000


def test_it_restores_and_serves() -> None:
    bench = Bench()
    assert bench.life.report(()).state is ShardState.RESTORING
    bench.answer(RESTORED, ShardState.READY)
    report = bench.life.report((1,))
    assert (report.newest_save, report.restored_samples, report.resumed_samples) == (SAVE, 40, None)
    assert (report.applied_step, report.silent, report.load_s) == (4, ("trainer/1",), 0.1)


def test_it_waits_for_leave_to_restore() -> None:
    bench = Bench(may_restore=False)
    bench.life.read_mail()
    assert not bench.restorer.rosters
    bench.follow(2)
    bench.answer(RESTORED, ShardState.READY)
    assert [roster.may_restore for roster in bench.restorer.rosters] == [True]


def test_below_the_floor_it_tries_again_only_under_another_floor() -> None:
    bench = Bench(floor_samples=50)
    bench.answer(BelowFloor(SAVE), ShardState.BELOW_FLOOR)
    assert bench.life.report(()).newest_save == SAVE
    bench.follow(2, floor_samples=50)
    assert bench.life.state is ShardState.BELOW_FLOOR
    bench.follow(3, floor_samples=40)
    bench.answer(RESTORED, ShardState.READY)
    assert [roster.floor_samples for roster in bench.restorer.rosters] == [50, 40]


def test_a_rollback_stops_serving_and_restores_in_the_new_generation() -> None:
    bench = Bench()
    bench.answer(RESTORED, ShardState.READY)
    bench.push(5)
    bench.life.cut()
    bench.follow(2, generation=2)
    assert bench.life.state is ShardState.RESTORING
    assert bench.service.progress is None
    assert not bench.saver.copies, "a save of the old generation is of no use"
    bench.life.post(Committed(1, SaveRef("late", 5, 50), 0.1))
    bench.answer(RESTORED, ShardState.READY)
    assert bench.life.report(()).newest_save == SAVE
    assert bench.service.progress.generation == 2


def test_a_rollback_during_a_restore_makes_it_start_over() -> None:
    bench = Bench()
    bench.follow(2, generation=2)
    bench.restorer.answers.put(RESTORED)  # of generation 1
    bench.until(lambda: len(bench.restorer.rosters) == 2)
    assert bench.service.progress is None
    bench.answer(RESTORED, ShardState.READY)
    assert bench.restorer.rosters[1].counters.generation == 2


def test_a_damaged_anchor_is_reported_until_a_new_generation() -> None:
    bench = Bench()
    problem = Problem("AnchorDamaged", "what", "how")
    bench.restorer.answers.put(NothingVerifies(problem))
    bench.until(lambda: bench.life.report(()).problem == problem)
    bench.follow(2)
    assert len(bench.restorer.rosters) == 1
    bench.follow(3, generation=2)
    bench.answer(RESTORED, ShardState.READY)
    assert bench.life.report(()).problem is None


def test_what_ends_a_restore_for_good_ends_the_process() -> None:
    bench = Bench()
    bench.restorer.answers.put(ValueError("of another shape"))
    with pytest.raises(ValueError, match="of another shape"):
        bench.until(lambda: False)


def test_a_failed_save_is_a_problem_until_one_succeeds() -> None:
    bench = Bench()
    bench.answer(RESTORED, ShardState.READY)
    bench.life.post(SaveFailed(Problem("StoreFull", "no room", "make room")))
    bench.life.read_mail()
    assert bench.life.report(()).problem == Problem("StoreFull", "no room", "make room")
    bench.life.post(Committed(1, SaveRef("new", 5, 50), 0.1))
    bench.life.read_mail()
    assert bench.life.report(()).problem is None
    assert bench.life.report(()).newest_save == SaveRef("new", 5, 50)


@pytest.mark.parametrize(
    "changes", [{"newest_incarnation": 2}, {"incarnation": 2, "newest_incarnation": 2}, {"index": 1}]
)
def test_it_steps_aside(changes: dict[str, int]) -> None:
    assert Bench().follow(2, **changes) == Ending(ExitCode.SUPERSEDED)


def test_a_flush_saves_what_changed_and_ends_with_its_reference() -> None:
    bench = Bench()
    bench.answer(RESTORED, ShardState.READY)
    bench.push(5, 6)
    assert bench.life.terminate() is None
    assert bench.life.state is ShardState.FLUSHING
    (copy,) = bench.saver.copies
    assert (copy.meta.kind, copy.meta.step, copy.meta.samples, copy.meta.applied) == ("Flush", 6, 60, (6,))
    assert bench.follow(2, newest_incarnation=2) is None, "the successor waits for this very flush"
    flushed = SaveRef("flush", 6, 60)
    bench.life.post(Committed(1, flushed, 0.1))
    bench.saver.idle = True
    assert bench.life.terminate() == Ending(ExitCode.FLUSHED, flushed)
    assert len(bench.saver.copies) == 1


def test_a_flush_with_nothing_changed_names_the_newest_save() -> None:
    bench = Bench()
    bench.answer(RESTORED, ShardState.READY)
    bench.push(5)
    bench.service.progress.dirty = False  # type: ignore[union-attr]
    assert bench.life.terminate() == Ending(ExitCode.FLUSHED, SAVE)
    assert not bench.saver.copies


def test_an_open_loss_is_no_flush() -> None:
    bench = Bench()
    bench.answer(RESTORED, ShardState.READY)
    assert bench.life.terminate() == Ending(TERMINATED)
    assert Bench().life.terminate() == Ending(TERMINATED), "neither is a restore that is not over"
