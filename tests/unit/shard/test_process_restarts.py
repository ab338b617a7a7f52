"""Successive processes of a shard in one shared memory, killed at any line of a push or of a save."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from cpr_contract.choices import SparseUpdates
from cpr_contract.manifests import RowUpdates
from cpr_contract.reports import ShardReport, ShardState
from cpr_contract.roster import Counters
from cpr_contract.spec import JobSpec
from cpr_trainer.checkpoint.restore.restorer import Restored, Restorer
from cpr_trainer.checkpoint.write.checkpointer import ShardCheckpointer
from cpr_trainer.checkpoint.write.writer import WriterThread
from cpr_trainer.embedding.arena import Arena, LocalRows
from cpr_trainer.embedding.memory import SharedMemory, SizeOf
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.exchange.frames import Operation
from cpr_trainer.shard.lifecycle import Lifecycle
from cpr_trainer.shard.resume import ShardControlBlock
from cpr_trainer.shard.service import Service
from cpr_trainer.shard.status import Metrics
from cpr_trainer.shard.steps import StepService
from support.killed_lines import killed_at
from support.shard_fakes import ROWS, FakeClient, FakeRestorer, FakeWriter, committed
from support.shard_job import shard_roster, small_job

FILES = (
    "embedding/arena.py",
    "embedding/buffer.py",
    "embedding/segments.py",
    "shard/service.py",
    "shard/steps.py",
    "shard/resume.py",
    "shard/state.py",
)
TRAINERS = 2
NEW = Restored(None, 0, 0, (0,) * TRAINERS, (), RowUpdates((0,) * TRAINERS), 0.1)


class RestartedProcess:
    """The shared memory of a shard, and its successive processes."""

    def __init__(self, sparse_updates: SparseUpdates = "PerPush") -> None:
        self.job: JobSpec = replace(small_job(Path("unused"), trainers=TRAINERS), sparse_updates=sparse_updates)
        size = SizeOf()
        ShardControlBlock(size, self.job)
        Arena.empty(self.job, ROWS, memory=size)
        self.shared = SharedMemory(size.bytes)
        ShardControlBlock.new(self.shared.view(), self.job)
        self.roster = shard_roster(trainers=TRAINERS, may_restore=False)
        self.begin()
        self.lifecycle._serve(NEW)

    def begin(self) -> None:
        """Begin the next process."""
        ShardControlBlock(self.shared.view(), self.job).begin_process()
        memory = self.shared.view()
        self.control_block = ShardControlBlock(memory, self.job)
        local, metrics = LocalRows.of(self.job, Placement.of(self.job.model, 1), 0, memory), Metrics()
        self.arena = local.arena
        kind = StepService if self.job.per_step else Service
        self.service = kind(self.job, local.placement, 0, self.arena, metrics)
        self.lifecycle = Lifecycle(self.job, self.roster, self.service, self.control_block)
        self.saver = FakeWriter()
        writer = cast(WriterThread, self.saver)
        saving = ShardCheckpointer(self.job, self.roster, local, writer, metrics.saves, None)
        self.lifecycle.begin(cast(Restorer, FakeRestorer()), saving)
        self.clients = [FakeClient(self.service, rank) for rank in range(TRAINERS)]
        for client in self.clients:
            self.service.joined(client)

    def steps(self, *steps: int, cut: int = 0) -> None:
        """Let all ranks push these steps, each a row of its own and one that both have."""
        for step in steps if self.job.per_step else ():
            for client in self.clients if step > self.applied[0] else ():
                client.send_frame(Operation.COMMIT, step - 1, order=1, row_updates=step - 1, cut_step=cut)
                assert client.pushes(step, row=step % 3 + client.rank, cut_step=cut) == ["RECEIVED"]
            for client in self.clients if step > self.applied[0] else ():
                client.send_frame(Operation.COMMIT, step, order=1, row_updates=step, cut_step=cut)
        for step in steps:
            for rank, client in enumerate(self.clients):
                if client.rank == rank and step > self.applied[rank]:
                    assert client.pushes(step, row=step % 3 + rank, cut_step=cut)[-1:] == ["ACK"]

    @property
    def applied(self) -> tuple[int, ...]:
        assert self.service.progress is not None
        return self.service.progress.applied

    @property
    def report(self) -> ShardReport:
        return replace(self.lifecycle.report(()), lives=0)

    @property
    def rows(self) -> tuple[bytes, ...]:
        segment = self.arena.segments[0]
        return segment.rows.tobytes(), segment.state.tobytes(), self.arena.epochs.of.tobytes()


def killed_then(
    work: Callable[[RestartedProcess], object], *before: int, sparse_updates: SparseUpdates = "PerPush"
) -> int:
    """Kill a process at each line of `work`, and repeat the work in the next process. Return the number of lines."""
    calm = RestartedProcess(sparse_updates)
    calm.steps(*before)
    work(calm)
    for line in count(1):
        process = RestartedProcess(sparse_updates)
        process.steps(*before)
        died = killed_at(line, lambda each=process: work(each), *FILES)
        process.begin()
        assert process.control_block.process_number == 2
        work(process)
        assert (process.report, process.rows) == (calm.report, calm.rows), f"killed at line {line}"
        if not died:
            return line
    raise AssertionError


@pytest.mark.parametrize("sparse_updates", ["PerPush", "PerStep"])
@pytest.mark.parametrize("before", [(), (1, 2)])
def test_a_push_killed_at_any_line_is_applied_once(before: tuple[int, ...], sparse_updates: SparseUpdates) -> None:
    step = len(before) + 1
    assert killed_then(lambda process: process.steps(step), *before, sparse_updates=sparse_updates) > 100


def test_an_empty_push_killed_at_any_line_is_counted_once() -> None:
    def push(process: RestartedProcess) -> None:
        if process.applied[0] < 3:
            assert process.clients[0].send_frame(Operation.PUSH, 3, row_updates=2) == ["ACK"]

    assert killed_then(push, 1, 2) > 20


def test_cut_killed_at_any_line_is_taken_or_voided() -> None:
    """Training continues beyond it in any case, and the save of the next cut holds all changes."""
    calm = RestartedProcess()
    calm.steps(1, 2, 3, cut=3)
    calm.steps(4, 5, cut=5)
    for line in count(1):
        process = RestartedProcess()
        process.steps(1, 2)
        died = killed_at(line, lambda each=process: each.steps(3, cut=3), *FILES, "write/checkpointer.py")
        process.begin()
        process.steps(3, cut=3)
        (save,) = process.saver.saves
        assert (save.draft.kind, save.draft.step, save.draft.applied) == ("Anchor", 3, (3, 3))
        process.steps(4, 5, cut=5)
        assert process.saver.saves[-1].draft.step == 5
        assert process.saver.saves[-1].draft.chain == ()
        assert process.rows[:2] == calm.rows[:2]
        if not died:
            return


def test_cut_passed_by_training_is_voided() -> None:
    process = RestartedProcess()
    process.steps(1, 2, 3, cut=3)
    process.steps(4)
    process.begin()
    assert process.saver.saves == []
    assert process.service.given_up_step == 3
    assert process.service.progress is not None
    assert process.service.progress.dirty


def test_next_process_bases_its_saves_on_committed_ones() -> None:
    process = RestartedProcess()
    process.steps(1, 2, 3, cut=3)
    process.lifecycle.post(committed(process.saver.saves[0]))
    process.saver.idle = True
    process.lifecycle.tick()
    process.steps(4)
    process.begin()
    assert process.report.newest_save is not None
    assert process.report.newest_save.key == "the new key"
    process.steps(5, cut=5)
    assert [ref.key for ref in process.saver.saves[0].draft.chain] == ["the new key"]


@pytest.mark.parametrize("followed", [False, True])
def test_next_process_restores_in_a_new_generation(*, followed: bool) -> None:
    """The last server had followed the roster and was killed while it restored, or had not seen it."""
    process = RestartedProcess()
    process.steps(1, 2)
    rolled_back = replace(process.roster, counters=Counters(2, 1, 2))
    if followed:
        process.lifecycle.follow(rolled_back)
    else:
        process.roster = rolled_back
    process.begin()
    assert process.lifecycle.state is ShardState.RESTORING
    assert process.control_block.read() is None


def test_welcome_carries_the_number_of_the_process() -> None:
    process = RestartedProcess()
    process.begin()
    assert [client.sent[0][0].count for client in process.clients] == [2, 2]


def test_shared_memory_with_a_damaged_account_is_refused() -> None:
    process = RestartedProcess()
    process.steps(1)
    control_block = ShardControlBlock(process.shared.view(), process.job)
    assert control_block.usable
    copy = control_block._copies[int(control_block._words[3]) - 1]
    copy[100] ^= 1
    assert not control_block.usable


def test_resume_state_is_the_old_or_the_new_one_wherever_its_writer_is_killed() -> None:
    process = RestartedProcess()
    process.steps(1)
    old = process.control_block.read()
    assert old is not None
    new = replace(old, applied=(9, 9), account=replace(old.account, dirty=False, given_up_step=4))
    found = set()
    for line in count(1):
        process.control_block.write(old)
        died = killed_at(line, lambda: process.control_block.write(new), "shard/resume.py")
        read = ShardControlBlock(process.shared.view(), process.job).read()
        assert read in {old, new} if died else read == new
        found.add(read == new)
        process.control_block = ShardControlBlock(process.shared.view(), process.job)
        if not died:
            break
    assert found == {False, True}


def test_rows_that_a_priority_save_had_chosen_are_free_again() -> None:
    process = RestartedProcess()
    process.steps(1)
    process.arena.epochs.choose(np.array([5]))
    process.begin()
    assert not process.arena.epochs.chosen(np.arange(ROWS)).any()
