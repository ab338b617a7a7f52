"""The life of a shard against a restorer and a writer that do what the test says."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from cpr_contract.manifests import ManifestRef, RowUpdates
from cpr_contract.reports import ExitCode, Problem, SaveRef, ShardState
from cpr_contract.roster import Counters
from cpr_trainer.checkpoint.format.parts import Link
from cpr_trainer.checkpoint.restore.restorer import BelowFloor, NothingVerifies, Outcome, Restored, Restorer
from cpr_trainer.checkpoint.write.checkpointer import ShardCheckpointer
from cpr_trainer.checkpoint.write.save import Committed, GivenUp, Save, SaveFailed
from cpr_trainer.checkpoint.write.writer import WriterThread
from cpr_trainer.embedding.arena import LocalRows
from cpr_trainer.embedding.memory import OwnMemory
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.shard.lifecycle import TERMINATED, Ending, Lifecycle
from cpr_trainer.shard.resume import ShardControlBlock
from cpr_trainer.shard.service import Service
from cpr_trainer.shard.status import Metrics
from support.shard_fakes import WAIT_S, FakeRestorer, FakeWriter, committed
from support.shard_job import shard_roster, small_job

SAVE = SaveRef("the key", 4, 40)
RESTORED = Restored(SAVE, 4, 40, (4,), (), RowUpdates((9,)), 0.1)
LINK = Link(ManifestRef("full", "digest"), 1, 40, 80)


class Bench:
    def __init__(self, **roster: Any) -> None:
        job = small_job(Path("unused"))
        job = replace(job, snapshots=replace(job.snapshots, rebase="Consecutive"))
        placement = Placement.of(job.model, 1)
        local, metrics = LocalRows.of(job, placement, 0), Metrics()
        self.service = Service(job, placement, 0, local.arena, metrics)
        self.restorer, self.writer = FakeRestorer(), FakeWriter()
        control_block = ShardControlBlock.new(OwnMemory(), job)
        control_block.begin_process()
        self.lifecycle = Lifecycle(job, shard_roster(**roster), self.service, metrics, control_block)
        writer = cast(WriterThread, self.writer)
        saving = ShardCheckpointer(job, self.lifecycle.roster, local, writer, metrics.saves, None)
        self.lifecycle.begin(cast(Restorer, self.restorer), saving)

    def follow(self, number: int, generation: int = 1, **changes: Any) -> Ending | None:
        return self.lifecycle.follow(shard_roster(counters=Counters(number, 1, generation), **changes))

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline
            self.lifecycle.tick()
            time.sleep(0.005)

    def answer(self, outcome: Outcome, state: ShardState) -> None:
        self.restorer.answers.put(outcome)
        self.until(lambda: self.lifecycle.state is state)

    def push(self, *steps: int) -> None:
        """As if these steps had been pushed."""
        progress = self.service.progress
        assert progress is not None
        for step in steps:
            progress.losses = replace(progress.losses, first_steps=(progress.losses.first_steps[0] or step,))
            progress.applied, progress.dirty, progress.total_samples = (step,), True, 1000
            self.service.arena.epochs.note(np.array([step]))

    def save(self, step: int) -> Save:
        """Train up to a cut; return its save."""
        self.push(step)
        self.lifecycle.cut()
        self.service.progress.dirty = False  # type: ignore[union-attr]
        return self.writer.saves[-1]

    def hear(self, mail: Committed | GivenUp | SaveFailed) -> None:
        self.writer.idle = True
        self.lifecycle.post(mail)
        self.lifecycle.tick()


def test_it_restores_and_serves() -> None:
    bench = Bench()
    assert bench.lifecycle.report(()).state is ShardState.RESTORING
    bench.answer(RESTORED, ShardState.READY)
    report = bench.lifecycle.report((1,))
    assert (report.newest_save, report.restored_samples, report.resumed_samples) == (SAVE, 40, None)
    assert (report.applied_step, report.silent, report.load_s) == (4, ("trainer/1",), 0.1)


def test_a_newer_roster_says_in_how_many_bits_to_save() -> None:
    bench = Bench(stored_bits=2)
    bench.answer(RESTORED, ShardState.READY)
    assert bench.save(5).draft.bits == 2
    bench.follow(2, stored_bits=4)
    assert bench.save(6).draft.bits == 4


def test_it_waits_for_leave_to_restore() -> None:
    bench = Bench(may_restore=False)
    bench.lifecycle.tick()
    assert not bench.restorer.rosters
    bench.follow(2)
    bench.answer(RESTORED, ShardState.READY)
    assert [roster.may_restore for roster in bench.restorer.rosters] == [True]


def test_below_the_floor_it_tries_again_only_under_another_floor() -> None:
    bench = Bench(floor_samples=50)
    bench.answer(BelowFloor(SAVE), ShardState.BELOW_FLOOR)
    assert bench.lifecycle.report(()).newest_save == SAVE
    bench.follow(2, floor_samples=50)
    assert bench.lifecycle.state is ShardState.BELOW_FLOOR
    bench.follow(3, floor_samples=40)
    bench.answer(RESTORED, ShardState.READY)
    assert [roster.floor_samples for roster in bench.restorer.rosters] == [50, 40]


def test_a_rollback_stops_serving_and_restores_in_the_new_generation() -> None:
    bench = Bench()
    bench.answer(RESTORED, ShardState.READY)
    save = bench.save(5)
    bench.follow(2, generation=2)
    assert (bench.lifecycle.state, bench.service.progress) == (ShardState.RESTORING, None)
    assert not bench.writer.saves, "a save of the old generation is of no use"
    bench.lifecycle.post(committed(save))
    bench.answer(RESTORED, ShardState.READY)
    assert bench.lifecycle.report(()).newest_save == SAVE
    assert bench.service.progress is not None
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
    bench.until(lambda: bench.lifecycle.report(()).problem == problem)
    bench.follow(2)
    assert len(bench.restorer.rosters) == 1
    bench.follow(3, generation=2)
    bench.answer(RESTORED, ShardState.READY)
    assert bench.lifecycle.report(()).problem is None


def test_what_ends_a_restore_for_good_ends_the_process() -> None:
    bench = Bench()
    bench.restorer.answers.put(ValueError("of another shape"))
    with pytest.raises(ValueError, match="of another shape"):
        bench.until(lambda: False)


def test_an_error_that_nobody_foresaw_ends_the_process() -> None:
    bench = Bench()
    bench.lifecycle.post(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        bench.lifecycle.tick()


def test_a_failed_save_is_a_problem_until_one_succeeds() -> None:
    bench = Bench()
    bench.answer(RESTORED, ShardState.READY)
    save = bench.save(5)
    bench.hear(SaveFailed(Problem("StoreFull", "no room", "make room")))
    assert bench.lifecycle.report(()).problem == Problem("StoreFull", "no room", "make room")
    full = [bench.service.store_full]
    bench.hear(committed(save))
    assert bench.lifecycle.report(()).problem is None
    assert [*full, bench.service.store_full] == [True, False]
    assert bench.lifecycle.report(()).newest_save == SaveRef("the new key", 5, 50)


def test_a_save_that_training_outran_is_told_to_the_trainers_and_flushed_at_the_end() -> None:
    bench = Bench()
    bench.answer(RESTORED, ShardState.READY)
    save, problem = bench.save(5), Problem("SaveOutrun", "too slow", "faster")
    bench.hear(GivenUp(save, problem))
    assert bench.lifecycle.report(()).problem == problem
    assert bench.service.answer(0, 1).cut_step == 5
    bench.lifecycle.terminate()
    assert bench.writer.saves[-1].draft.kind == "Flush"
    bench.hear(GivenUp(bench.writer.saves[-1], problem))
    assert bench.lifecycle.terminate() == Ending(TERMINATED), "this is a loss"


LOST = Problem("BucketMissing", "it is gone", "make it")


def test_only_the_last_cut_that_has_lost_its_ground_is_made_anew() -> None:
    bench = Bench()
    bench.answer(replace(RESTORED, chain=(LINK,)), ShardState.READY)
    bench.hear(GivenUp(bench.save(5), LOST))
    assert len(bench.writer.saves) == 1
    assert bench.service.answer(0, 1).cut_step == 5
    bench.push(6)
    bench.service.progress.total_samples = 60  # type: ignore[union-attr]
    bench.lifecycle.cut()
    bench.hear(GivenUp(bench.writer.saves[-1], LOST))
    assert [save.draft.step for save in bench.writer.saves] == [5, 6, 6]
    assert bench.service.answer(0, 1).cut_step == 5, "the leader still waits for it"


def test_a_flush_takes_the_place_of_a_save_under_way() -> None:
    bench = Bench()
    bench.answer(RESTORED, ShardState.READY)
    bench.save(5)
    assert bench.lifecycle.terminate() is None
    assert [save.draft.kind for save in bench.writer.saves] == ["Anchor", "Flush"]


@pytest.mark.parametrize(
    "changes", [{"newest_incarnation": 2}, {"incarnation": 2, "newest_incarnation": 2}, {"index": 1}]
)
def test_it_steps_aside(changes: dict[str, int]) -> None:
    assert Bench().follow(2, **changes) == Ending(ExitCode.SUPERSEDED)


def test_a_flush_saves_what_changed_and_ends_with_its_reference() -> None:
    bench = Bench()
    bench.answer(RESTORED, ShardState.READY)
    bench.push(5, 6)
    assert bench.lifecycle.terminate() is None
    assert bench.lifecycle.state is ShardState.FLUSHING
    (save,) = bench.writer.saves
    assert (save.draft.kind, save.draft.step, save.draft.samples, save.draft.applied) == ("Flush", 6, 60, (6,))
    assert bench.follow(2, newest_incarnation=2) is None, "the successor waits for this very flush"
    bench.hear(committed(save, "flush"))
    assert bench.lifecycle.terminate() == Ending(ExitCode.FLUSHED, SaveRef("flush", 6, 60))
    assert len(bench.writer.saves) == 1


def test_a_flush_with_nothing_changed_names_the_newest_save() -> None:
    bench = Bench()
    bench.answer(RESTORED, ShardState.READY)
    bench.push(5)
    bench.service.progress.dirty = False  # type: ignore[union-attr]
    assert bench.lifecycle.terminate() == Ending(ExitCode.FLUSHED, SAVE)
    assert not bench.writer.saves


def test_an_open_loss_is_no_flush() -> None:
    bench = Bench()
    bench.answer(RESTORED, ShardState.READY)
    assert bench.lifecycle.terminate() == Ending(TERMINATED)
    assert Bench().lifecycle.terminate() == Ending(TERMINATED), "neither is a restore that is not over"
