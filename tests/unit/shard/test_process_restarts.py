"""One life of a shard's server after the other, in one memory: killed at any line of a push, or while it saves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import cast

import numpy as np
import pytest

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
from support.killed_lines import killed_at
from support.shard_fakes import ROWS, FakeClient, FakeRestorer, FakeWriter, committed
from support.shard_job import shard_roster, small_job

FILES = (
    "embedding/arena.py",
    "embedding/buffer.py",
    "embedding/segments.py",
    "shard/service.py",
    "shard/resume.py",
    "shard/state.py",
)
TRAINERS = 2
NEW = Restored(None, 0, 0, (0,) * TRAINERS, (), RowUpdates((0,) * TRAINERS), 0.1)


class House:
    """The memory of a shard, and the servers that live in it, one after the other."""

    def __init__(self) -> None:
        self.job: JobSpec = small_job(Path("unused"), trainers=TRAINERS)
        size = SizeOf()
        ShardControlBlock(size, self.job)
        Arena.empty(self.job, ROWS, memory=size)
        self.shared = SharedMemory(size.bytes)
        ShardControlBlock.new(self.shared.view(), self.job)
        self.roster = shard_roster(trainers=TRAINERS, may_restore=False)
        self.begin()
        self.lifecycle._serve(NEW)

    def begin(self) -> None:
        """Begin the next life."""
        ShardControlBlock(self.shared.view(), self.job).begin_process()
        memory = self.shared.view()
        self.control_block = ShardControlBlock(memory, self.job)
        local, metrics = LocalRows.of(self.job, Placement.of(self.job.model, 1), 0, memory), Metrics()
        self.arena = local.arena
        self.service = Service(self.job, local.placement, 0, self.arena, metrics)
        self.lifecycle = Lifecycle(self.job, self.roster, self.service, metrics, self.control_block)
        self.saver = FakeWriter()
        writer = cast(WriterThread, self.saver)
        saving = ShardCheckpointer(self.job, self.roster, local, writer, metrics.saves, None)
        self.lifecycle.begin(cast(Restorer, FakeRestorer()), saving)
        self.clients = [FakeClient(self.service, rank) for rank in range(TRAINERS)]
        for client in self.clients:
            self.service.joined(client)

    def steps(self, *steps: int, cut: int = 0) -> None:
        """Let all ranks push these steps, each a row of its own and one that both have."""
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


def killed_then(work: Callable[[House], object], *before: int) -> int:
    """Kill a house at each line of `work`, and do the work again in the next life; how many lines there are."""
    calm = House()
    calm.steps(*before)
    work(calm)
    for line in count(1):
        house = House()
        house.steps(*before)
        died = killed_at(line, lambda h=house: work(h), *FILES)
        house.begin()
        assert house.control_block.process_number == 2
        work(house)
        assert (house.report, house.rows) == (calm.report, calm.rows), f"killed at line {line}"
        if not died:
            return line
    raise AssertionError


@pytest.mark.parametrize("before", [(), (1, 2)])
def test_a_push_killed_at_any_line_is_applied_once(before: tuple[int, ...]) -> None:
    assert killed_then(lambda house: house.steps(len(before) + 1), *before) > 100


def test_an_empty_push_killed_at_any_line_is_counted_once() -> None:
    def push(house: House) -> None:
        if house.applied[0] < 3:
            assert house.clients[0].send_frame(Operation.PUSH, 3, row_updates=2) == ["ACK"]

    assert killed_then(push, 1, 2) > 20


def test_a_cut_killed_at_any_line_is_taken_or_given_up() -> None:
    """Training goes on beyond it in any case, and the save of the next one holds all that the first would have."""
    calm = House()
    calm.steps(1, 2, 3, cut=3)
    calm.steps(4, 5, cut=5)
    for line in count(1):
        house = House()
        house.steps(1, 2)
        died = killed_at(line, lambda h=house: h.steps(3, cut=3), *FILES, "write/checkpointer.py")
        house.begin()
        house.steps(3, cut=3)
        (save,) = house.saver.saves
        assert (save.draft.kind, save.draft.step, save.draft.applied) == ("Anchor", 3, (3, 3))
        house.steps(4, 5, cut=5)
        assert house.saver.saves[-1].draft.step == 5
        assert house.saver.saves[-1].draft.chain == ()
        assert house.rows[:2] == calm.rows[:2]
        if not died:
            return


def test_a_cut_that_training_has_left_behind_is_given_up() -> None:
    house = House()
    house.steps(1, 2, 3, cut=3)
    house.steps(4)
    house.begin()
    assert house.saver.saves == []
    assert house.service.given_up_step == 3
    assert house.service.progress is not None
    assert house.service.progress.dirty


def test_the_next_life_stands_on_what_is_committed() -> None:
    house = House()
    house.steps(1, 2, 3, cut=3)
    house.lifecycle.post(committed(house.saver.saves[0]))
    house.saver.idle = True
    house.lifecycle.tick()
    house.steps(4)
    house.begin()
    assert house.report.newest_save is not None
    assert house.report.newest_save.key == "the new key"
    house.steps(5, cut=5)
    assert [ref.key for ref in house.saver.saves[0].draft.chain] == ["the new key"]


@pytest.mark.parametrize("followed", [False, True])
def test_next_life_restores_in_a_new_generation(*, followed: bool) -> None:
    """The last server had followed the roster and was killed while it restored, or had not seen it."""
    house = House()
    house.steps(1, 2)
    rolled_back = replace(house.roster, counters=Counters(2, 1, 2))
    if followed:
        house.lifecycle.follow(rolled_back)
    else:
        house.roster = rolled_back
    house.begin()
    assert house.lifecycle.state is ShardState.RESTORING
    assert house.control_block.read() is None


def test_trainers_hear_which_life_welcomes_them() -> None:
    house = House()
    house.begin()
    assert [client.sent[0][0].count for client in house.clients] == [2, 2]


def test_memory_with_a_damaged_account_is_refused() -> None:
    house = House()
    house.steps(1)
    control_block = ShardControlBlock(house.shared.view(), house.job)
    assert control_block.usable
    copy = control_block._copies[int(control_block._words[3]) - 1]
    copy[100] ^= 1
    assert not control_block.usable


def test_what_is_kept_is_the_old_or_the_new_wherever_its_writer_is_killed() -> None:
    house = House()
    house.steps(1)
    old = house.control_block.read()
    assert old is not None
    new = replace(old, applied=(9, 9), account=replace(old.account, dirty=False, given_up_step=4))
    found = set()
    for line in count(1):
        house.control_block.write(old)
        died = killed_at(line, lambda: house.control_block.write(new), "shard/resume.py")
        read = ShardControlBlock(house.shared.view(), house.job).read()
        assert read in {old, new} if died else read == new
        found.add(read == new)
        house.control_block = ShardControlBlock(house.shared.view(), house.job)
        if not died:
            break
    assert found == {False, True}


def test_rows_that_a_priority_save_had_chosen_are_free_again() -> None:
    house = House()
    house.steps(1)
    house.arena.epochs.choose(np.array([5]))
    house.begin()
    assert not house.arena.epochs.chosen(np.arange(ROWS)).any()
