"""The lifecycle of a shard, with a restorer and a writer scripted by the test."""

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
from cpr_trainer.exchange.frames import Operation
from cpr_trainer.shard.lifecycle import TERMINATED, Ending, Lifecycle
from cpr_trainer.shard.resume import ShardControlBlock
from cpr_trainer.shard.service import Service
from cpr_trainer.shard.status import Metrics
from support.shard_fakes import WAIT_S, FakeClient, FakeRestorer, FakeWriter, committed
from support.shard_job import shard_roster, small_job

SAVE = SaveRef("the key", 4, 40)
RESTORED = Restored(SAVE, 4, 40, (4,), (), RowUpdates((9,)), 0.1)
LINK = Link(ManifestRef("full", "digest"), 1, 40, 80)


class Harness:
    def __init__(self, **roster: Any) -> None:
        job = small_job(Path("unused"))
        job = replace(job, snapshots=replace(job.snapshots, rebase="Consecutive"))
        placement = Placement.of(job.model, 1)
        local, metrics = LocalRows.of(job, placement, 0), Metrics()
        self.service = Service(job, placement, 0, local.arena, metrics)
        self.restorer, self.writer = FakeRestorer(), FakeWriter()
        control_block = ShardControlBlock.new(OwnMemory(), job)
        control_block.begin_process()
        self.lifecycle = Lifecycle(job, shard_roster(**roster), self.service, control_block)
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

    def post(self, event: Committed | GivenUp | SaveFailed) -> None:
        self.writer.idle = True
        self.lifecycle.post(event)
        self.lifecycle.tick()


def test_shard_restores_and_serves() -> None:
    harness = Harness()
    assert harness.lifecycle.report(()).state is ShardState.RESTORING
    harness.answer(RESTORED, ShardState.READY)
    report = harness.lifecycle.report((1,))
    assert (report.newest_save, report.restored_samples, report.resumed_samples) == (SAVE, 40, None)
    assert (report.applied_step, report.silent, report.load_s) == (4, ("trainer/1",), 0.1)


def test_newer_roster_sets_the_bits_of_saves() -> None:
    harness = Harness(stored_bits=2)
    harness.answer(RESTORED, ShardState.READY)
    assert harness.save(5).draft.bits == 2
    harness.follow(2, stored_bits=4)
    assert harness.save(6).draft.bits == 4


def test_shard_waits_for_permission_to_restore() -> None:
    harness = Harness(may_restore=False)
    harness.lifecycle.tick()
    assert not harness.restorer.rosters
    harness.follow(2)
    harness.answer(RESTORED, ShardState.READY)
    assert [roster.may_restore for roster in harness.restorer.rosters] == [True]


def test_restore_below_the_floor_is_repeated_only_under_another_floor() -> None:
    harness = Harness(floor_samples=50)
    harness.answer(BelowFloor(SAVE), ShardState.BELOW_FLOOR)
    assert harness.lifecycle.report(()).newest_save == SAVE
    harness.follow(2, floor_samples=50)
    assert harness.lifecycle.state is ShardState.BELOW_FLOOR
    harness.follow(3, floor_samples=40)
    harness.answer(RESTORED, ShardState.READY)
    assert [roster.floor_samples for roster in harness.restorer.rosters] == [50, 40]


def test_a_rollback_stops_serving_and_restores_in_the_new_generation() -> None:
    harness = Harness()
    harness.answer(RESTORED, ShardState.READY)
    save = harness.save(5)
    harness.follow(2, generation=2)
    assert (harness.lifecycle.state, harness.service.progress) == (ShardState.RESTORING, None)
    assert not harness.writer.saves, "a save of the old generation is of no use"
    harness.lifecycle.post(committed(save))
    harness.answer(RESTORED, ShardState.READY)
    assert harness.lifecycle.report(()).newest_save == SAVE
    assert harness.service.progress is not None
    assert harness.service.progress.generation == 2


def test_a_rollback_during_a_restore_makes_it_start_over() -> None:
    harness = Harness()
    harness.follow(2, generation=2)
    harness.restorer.answers.put(RESTORED)  # of generation 1
    harness.until(lambda: len(harness.restorer.rosters) == 2)
    assert harness.service.progress is None
    harness.answer(RESTORED, ShardState.READY)
    assert harness.restorer.rosters[1].counters.generation == 2


def test_a_damaged_anchor_is_reported_until_a_new_generation() -> None:
    harness = Harness()
    problem = Problem("AnchorDamaged", "what", "how")
    harness.restorer.answers.put(NothingVerifies(problem))
    harness.until(lambda: harness.lifecycle.report(()).problem == problem)
    harness.follow(2)
    assert len(harness.restorer.rosters) == 1
    harness.follow(3, generation=2)
    harness.answer(RESTORED, ShardState.READY)
    assert harness.lifecycle.report(()).problem is None


def test_final_failure_of_a_restore_ends_the_process() -> None:
    harness = Harness()
    harness.restorer.answers.put(ValueError("of another shape"))
    with pytest.raises(ValueError, match="of another shape"):
        harness.until(lambda: False)


def test_unexpected_error_ends_the_process() -> None:
    harness = Harness()
    harness.lifecycle.post(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        harness.lifecycle.tick()


def test_a_failed_save_is_a_problem_until_one_succeeds() -> None:
    harness = Harness()
    harness.answer(RESTORED, ShardState.READY)
    save = harness.save(5)
    harness.post(SaveFailed(Problem("StoreFull", "no space", "make space")))
    assert harness.lifecycle.report(()).problem == Problem("StoreFull", "no space", "make space")
    full = [harness.service.store_full]
    harness.post(committed(save))
    assert harness.lifecycle.report(()).problem is None
    assert [*full, harness.service.store_full] == [True, False]
    assert harness.lifecycle.report(()).newest_save == SaveRef("the new key", 5, 50)


def test_trainers_get_the_outcome_of_a_save_without_a_ping() -> None:
    harness = Harness()
    harness.answer(RESTORED, ShardState.READY)
    trainer = FakeClient(harness.service, 0)
    harness.service.joined(trainer)
    save, before = harness.save(5), len(trainer.sent)
    harness.post(committed(save))
    later = harness.save(6)
    harness.post(GivenUp(later, Problem("SaveOutrun", "too slow", "faster")))
    reported = [header for header, _ in trainer.sent[before:] if header.operation is Operation.PONG]
    assert [(each.saved_step, each.cut_step) for each in reported] == [(5, 0), (5, 6)]


def test_save_abandoned_for_a_full_undo_log_is_reported_and_flushed_at_the_end() -> None:
    harness = Harness()
    harness.answer(RESTORED, ShardState.READY)
    save, problem = harness.save(5), Problem("SaveOutrun", "too slow", "faster")
    harness.post(GivenUp(save, problem))
    assert harness.lifecycle.report(()).problem == problem
    assert harness.service.answer(0, 1).cut_step == 5
    harness.lifecycle.terminate()
    assert harness.writer.saves[-1].draft.kind == "Flush"
    harness.post(GivenUp(harness.writer.saves[-1], problem))
    assert harness.lifecycle.terminate() == Ending(TERMINATED), "this is a loss"


LOST = Problem("BucketMissing", "it is gone", "make it")


def test_only_the_last_cut_without_its_base_is_repeated() -> None:
    harness = Harness()
    harness.answer(replace(RESTORED, chain=(LINK,)), ShardState.READY)
    harness.post(GivenUp(harness.save(5), LOST))
    assert len(harness.writer.saves) == 1
    assert harness.service.answer(0, 1).cut_step == 5
    harness.push(6)
    harness.service.progress.total_samples = 60  # type: ignore[union-attr]
    harness.lifecycle.cut()
    harness.post(GivenUp(harness.writer.saves[-1], LOST))
    assert [save.draft.step for save in harness.writer.saves] == [5, 6, 6]
    assert harness.service.answer(0, 1).cut_step == 5, "the leader still waits for it"


def test_a_flush_takes_the_place_of_a_save_under_way() -> None:
    harness = Harness()
    harness.answer(RESTORED, ShardState.READY)
    harness.save(5)
    assert harness.lifecycle.terminate() is None
    assert [save.draft.kind for save in harness.writer.saves] == ["Anchor", "Flush"]


@pytest.mark.parametrize(
    "changes", [{"newest_incarnation": 2}, {"incarnation": 2, "newest_incarnation": 2}, {"index": 1}]
)
def test_shard_steps_aside(changes: dict[str, int]) -> None:
    assert Harness().follow(2, **changes) == Ending(ExitCode.SUPERSEDED)


def test_flush_saves_changed_rows_and_ends_with_its_reference() -> None:
    harness = Harness()
    harness.answer(RESTORED, ShardState.READY)
    harness.push(5, 6)
    assert harness.lifecycle.terminate() is None
    assert harness.lifecycle.state is ShardState.FLUSHING
    (save,) = harness.writer.saves
    assert (save.draft.kind, save.draft.step, save.draft.samples, save.draft.applied) == ("Flush", 6, 60, (6,))
    assert harness.follow(2, newest_incarnation=2) is None, "the successor waits for this very flush"
    harness.post(committed(save, "flush"))
    assert harness.lifecycle.terminate() == Ending(ExitCode.FLUSHED, SaveRef("flush", 6, 60))
    assert len(harness.writer.saves) == 1


def test_a_flush_with_nothing_changed_names_the_newest_save() -> None:
    harness = Harness()
    harness.answer(RESTORED, ShardState.READY)
    harness.push(5)
    harness.service.progress.dirty = False  # type: ignore[union-attr]
    assert harness.lifecycle.terminate() == Ending(ExitCode.FLUSHED, SAVE)
    assert not harness.writer.saves


def test_an_open_loss_is_no_flush() -> None:
    harness = Harness()
    harness.answer(RESTORED, ShardState.READY)
    assert harness.lifecycle.terminate() == Ending(TERMINATED)
    assert Harness().lifecycle.terminate() == Ending(TERMINATED), "neither is a restore that is not over"
