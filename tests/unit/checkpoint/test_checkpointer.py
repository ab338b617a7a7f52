"""The saves of a shard and their times. The writer is scripted; tracker and arena are real."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from cpr_contract.choices import Bits
from cpr_contract.manifests import ManifestRef, RowUpdates
from cpr_contract.reports import Problem
from cpr_trainer.arrays import Floats, Ints, Values
from cpr_trainer.checkpoint.format.parts import Link
from cpr_trainer.checkpoint.write.checkpointer import Chooser, Chosen, ShardCheckpointer
from cpr_trainer.checkpoint.write.save import GivenUp, Mark, Save
from cpr_trainer.checkpoint.write.writer import WriterThread
from cpr_trainer.embedding.arena import LocalRows
from cpr_trainer.embedding.buffer import RowBuffer
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.embedding.priority import make_tracker, population_of
from cpr_trainer.embedding.priority.strategies import MfuTracker
from cpr_trainer.embedding.priority.tracker import Claim
from cpr_trainer.shard.service import Service
from cpr_trainer.shard.state import Losses, Progress
from cpr_trainer.shard.status import Metrics
from support.saves import restore_record
from support.shard_fakes import FakeWriter, committed
from support.shard_job import shard_roster, small_job

QUOTA, EVERY_S = 3, 10.0


class Bench:
    """A serving shard of 1000 rows of one large table and 4 of a small one; two trainers."""

    def __init__(self, stored_bits: Bits = 32, **rules: Any) -> None:
        job = small_job(Path("unused"), rows=(1000, 4), trainers=2)
        self.job = replace(job, snapshots=replace(job.snapshots, **{"strategy": "MFU", "rebase": "OneShot"} | rules))
        placement = Placement.of(job.model, 1)
        local, metrics = LocalRows.of(job, placement, 0), Metrics()
        self.arena = local.arena
        self.service = Service(self.job, placement, 0, self.arena, metrics)
        population = population_of(placement, 0)
        self.small = population.small.tolist()
        self.tracker = make_tracker("MFU", self.arena, population, QUOTA, np.random.default_rng(1))
        self.chosen: list[Chosen] = []
        self.writer = FakeWriter()
        chooser = Chooser(self.tracker, QUOTA, self.chosen.append)
        roster = shard_roster(trainers=2, stored_bits=stored_bits)
        writer = cast(WriterThread, self.writer)
        self.saving = ShardCheckpointer(self.job, roster, local, writer, metrics.saves, chooser)
        self.progress = Progress(1, (0, 0), Losses.restored((), 2), RowUpdates((0, 0)), total_samples=1000)
        self.service.progress = self.progress
        self.saving.start((), "", 0.0)

    def push(self, *slots: int, applied: tuple[int, int] | None = None) -> None:
        self.arena.apply(np.array(slots), np.array(slots), np.ones((len(slots), 4), np.float32), 1)
        self.tracker.note(np.array(slots))
        if applied is not None:
            self.progress.applied = applied

    def advance(self, now_s: float, interval_s: float = EVERY_S) -> Save | None:
        """Let time pass; return the priority save, if any."""
        before = len(self.writer.saves)
        self.saving.tick(now_s, interval_s, self.service.progress)
        while self.saving._chooser._choosing and not self.chosen:  # type: ignore[union-attr]
            pass
        for chosen in self.chosen:
            self.saving.on_chosen(chosen, self.mark())
        self.chosen.clear()
        return self.writer.saves[-1] if len(self.writer.saves) > before else None

    def priority_save(self, now_s: float) -> Save:
        save = self.advance(now_s)
        assert save is not None
        return save

    def mark(self) -> Mark | None:
        return None if self.service.progress is None else self.service.mark(self.service.progress)

    def cut(self) -> Save:
        self.saving.save("Anchor", self.service.mark(self.progress))
        return self.writer.saves[-1]

    def commit(self, save: Save) -> None:
        self.writer.idle = True
        self.saving.on_commit(committed(save, f"{save.draft.kind}{save.draft.step}", rows=7))

    @property
    def pending(self) -> int:
        """Return the tracked number of row updates in no committed save."""
        assert isinstance(self.tracker, MfuTracker)
        counters = (self.tracker._counters, self.tracker._before)
        return sum(int(each.sum()) for each in counters if each is not None)

    def rows_of(self, save: Save) -> set[int]:
        buffer, found = RowBuffer.like(self.arena.segments[0], 2000), set[int]()
        while save.capture.fill(buffer):
            if save.tracker is not None:
                save.tracker.wrote(*buffer.filled)
            found |= set(buffer.slots[: buffer.used].tolist())
            buffer.used = 0
        return found


def large(bench: Bench, count: int) -> list[int]:
    return [slot for slot in range(1004) if slot not in bench.small][:count]


def test_a_priority_save_holds_the_most_used_rows_and_the_small_tables_that_changed() -> None:
    bench = Bench()
    a, b, c, d, e = large(bench, 5)
    bench.push(a, b, c, d, e, bench.small[0], applied=(1, 1))
    bench.push(a, c, e, applied=(2, 2))
    assert bench.advance(EVERY_S - 0.1) is None
    save = bench.priority_save(EVERY_S)
    assert bench.rows_of(save) == {a, c, e, bench.small[0]}
    assert (save.draft.kind, save.draft.step, save.draft.applied, save.draft.chain) == ("Priority", 2, (2, 2), ())
    assert save.draft.strategy == "MFU"


def test_priority_save_is_committed_when_no_trainer_can_resend_its_updates() -> None:
    bench = Bench()
    bench.push(5, applied=(3, 2))
    save = bench.priority_save(EVERY_S)
    assert (save.draft.step, save.draft.applied) == (2, (3, 2)), "its step is one that every rank has reached"
    for applied in ((5, 5), (9, 4), (5, 9)):
        bench.progress.applied = applied
        bench.advance(EVERY_S)
        assert not save.may_commit.is_set()
    bench.progress.applied = (6, 5)
    bench.advance(EVERY_S)
    assert save.may_commit.is_set()
    assert bench.cut().may_commit.is_set()


def test_next_priority_save_needs_its_time_the_end_of_the_last_and_new_steps() -> None:
    bench = Bench()
    bench.push(5, applied=(1, 1))
    first = bench.priority_save(EVERY_S)
    assert bench.advance(2 * EVERY_S) is None, "one is under way"
    bench.commit(first)
    assert bench.advance(2 * EVERY_S) is None, "no rank has made a step"
    bench.push(5, applied=(2, 1))
    assert bench.advance(2 * EVERY_S) is None, "one rank has not"
    bench.push(5, applied=(2, 2))
    assert bench.advance(2 * EVERY_S, interval_s=0.0) is None, "none are planned"
    assert bench.advance(2 * EVERY_S) is not None


def test_claims_end_with_a_commit_and_outlive_a_failure() -> None:
    bench = Bench()
    a, b, c, d, e = large(bench, 5)
    bench.push(a, b, c, applied=(1, 1))
    bench.push(a, b, c, applied=(2, 2))
    failed = bench.priority_save(EVERY_S)
    bench.writer.idle = True
    bench.saving.on_given_up(GivenUp(failed, Problem("SaveOutrun", "", "")))
    bench.push(d, e, applied=(3, 3))
    again = bench.priority_save(2 * EVERY_S)
    assert bench.rows_of(again) == {a, b, c}
    bench.commit(again)
    bench.push(d, applied=(4, 4))
    remaining = bench.priority_save(3 * EVERY_S)
    assert bench.rows_of(remaining) == {d, e}


def test_anchor_holds_rows_of_earlier_priority_saves() -> None:
    bench = Bench()
    bench.push(1, 2, applied=(1, 1))
    bench.commit(bench.cut())
    bench.push(2, 3, applied=(2, 2))
    save = bench.priority_save(EVERY_S)
    assert bench.rows_of(save) == {2, 3}
    bench.commit(save)
    anchor = bench.cut()
    assert bench.rows_of(anchor) == {2, 3}
    assert [ref.key for ref in anchor.draft.chain] == ["Anchor1"]
    assert bench.pending == 0


@pytest.mark.parametrize(
    ("reason", "chain", "rows"),
    [("SaveOutrun", ["Anchor1"], {2, 3}), ("BucketMissing", [], {1, 2, 3}), ("DamagedSave", [], {1, 2, 3})],
)
def test_save_after_one_that_lost_its_base_is_a_full_one(reason: str, chain: list[str], rows: set[int]) -> None:
    bench = Bench()
    bench.saving.start((), "", 0.0, restore_record(1))
    bench.push(1, applied=(1, 1))
    bench.commit(bench.cut())
    bench.push(2, applied=(2, 2))
    bench.writer.idle = True
    bench.saving.on_given_up(GivenUp(bench.cut(), Problem(reason, "", "")))
    bench.push(3, applied=(3, 3))
    save = bench.cut()
    assert [ref.key for ref in save.draft.chain] == chain
    assert bench.rows_of(save) == rows
    assert (save.restore_record is None) == bool(chain)


def test_priority_save_counts_the_updates_it_adds_to_the_save_before_it() -> None:
    bench = Bench()
    bench.saving.start((), "restored", 0.0)
    bench.push(1, 2, applied=(1, 1))
    bench.push(1, 2, applied=(2, 2))
    first = bench.priority_save(EVERY_S)
    bench.push(1, applied=(3, 3))  # after the mark: in no save
    bench.commit(first)
    bench.push(2, 3, applied=(4, 4))
    second = bench.priority_save(2 * EVERY_S)
    counted = [(save.draft.after, save.draft.added_updates) for save in (first, second)]
    assert counted == [("restored", 4), ("Priority2", 3)]
    bench.saving.on_given_up(GivenUp(second, Problem("SaveOutrun", "", "")))
    bench.commit(bench.cut())
    bench.push(1, applied=(5, 5))
    third = bench.priority_save(3 * EVERY_S)
    assert (third.draft.after, third.draft.added_updates) == ("Anchor4", 1)


def test_cut_replaces_a_priority_save_and_its_late_result_changes_nothing() -> None:
    bench = Bench()
    bench.push(1, applied=(1, 1))
    save = bench.priority_save(EVERY_S)
    bench.push(2, applied=(2, 2))
    anchor = bench.cut()
    bench.commit(save)
    assert bench.pending == 2
    bench.commit(anchor)
    assert bench.pending == 0
    assert [link.ref.key for link in bench.saving._links] == ["Anchor2"]


@pytest.mark.parametrize("between", ["a cut", "a rollback"])
def test_an_answer_that_comes_too_late_is_dropped(between: str) -> None:
    bench = Bench()
    bench.push(1, applied=(1, 1))
    bench.saving.tick(EVERY_S, EVERY_S, bench.progress)
    while not bench.chosen:
        pass
    if between == "a cut":
        bench.cut()
    else:
        bench.service.progress = replace(bench.progress, generation=2)
    count = len(bench.writer.saves)
    bench.saving.on_chosen(bench.chosen[0], bench.mark())
    assert len(bench.writer.saves) == count


def test_error_during_the_choice_of_rows_is_raised() -> None:
    bench = Bench()
    bench.push(1, applied=(1, 1))

    def choose(count: int) -> Claim:
        raise MemoryError("no memory")

    bench.tracker.choose = choose
    with pytest.raises(MemoryError):
        bench.advance(EVERY_S)


def test_tracker_records_the_rows_written_as_of_the_mark() -> None:
    bench = Bench()
    seen: dict[int, float] = {}

    def wrote(slots: Ints, rows: Values, state: Floats) -> None:
        seen.update(zip(slots.tolist(), rows[:, 0].tolist(), strict=True))

    bench.tracker.wrote = wrote
    bench.push(1, 2, applied=(1, 1))
    at_the_mark = bench.arena.rows[:, 0].tolist()
    anchor = bench.cut()
    bench.push(1, applied=(2, 2))
    bench.rows_of(anchor)
    assert seen == {1: at_the_mark[1], 2: at_the_mark[2]}


def cut_where_it_stands(bench: Bench) -> object:
    """Training pauses, and a cut is announced there."""
    bench.progress.cuts = bench.progress.cuts.announced(min(bench.progress.applied), bench.progress.applied)
    return bench.cut()


def last_cut(bench: Bench) -> object:
    bench.progress.applied = (100, 100)
    return bench.cut()


EXACT_SAVES: dict[str, tuple[Callable[[Bench], object], int, int]] = {
    # each save: its kind, bits and base
    "an anchor": (lambda b: b.cut(), 4, 1),
    "a flush": (lambda b: b.saving.save("Flush", b.service.mark(b.progress)), 32, 1),
    "the cut at which the job stops": (cut_where_it_stands, 32, 1),
    "the last cut": (last_cut, 32, 0),
    "a priority save": (lambda b: b.advance(EVERY_S), 4, 0),
}


@pytest.mark.parametrize("case", EXACT_SAVES)
def test_rows_take_fewer_bits_but_in_flushes_and_in_the_finished_model(case: str) -> None:
    save, bits, base = EXACT_SAVES[case]
    bench = Bench(stored_bits=4)
    bench.push(1, applied=(1, 1))
    bench.commit(bench.cut())
    bench.push(1, applied=(2, 2))
    save(bench)
    draft = bench.writer.saves[-1].draft
    assert (draft.bits, len(draft.chain)) == (bits, base)


@pytest.mark.parametrize("case", ["a flush", "the cut at which the job stops"])
def test_save_at_the_end_is_urgent(case: str) -> None:
    bench = Bench()
    bench.push(1, applied=(1, 1))
    cut = bench.cut()
    assert not cut.capture.urgent
    EXACT_SAVES[case][0](bench)
    assert bench.writer.saves[-1].capture.urgent
    assert cut.capture.urgent, "the replaced save has no waiting reader"


def test_saves_are_based_on_the_restored_one_until_epochs_are_used_up() -> None:
    bench = Bench(rebase="Consecutive")
    bench.arena.epochs.now = 2
    bench.saving.start((Link(ManifestRef("full", "d"), 1, 40, 80),), "full", 0.0)
    for step in range(1, 130):
        bench.push(step, applied=(step, step))
        anchor = bench.cut()
        if not anchor.draft.chain:
            assert bench.rows_of(anchor) == set(range(1, step + 1)), "a full save: all that ever changed"
            return
        assert bench.rows_of(anchor) == {step}
        bench.commit(anchor)
        bench.saving._links = (bench.saving._links[0], bench.saving._links[-1])  # a rule that always adds to the chain
    raise AssertionError("no full save")
