"""A shard killed at every stage of a save, of each kind, and of a restore: what comes back is a committed state.

A real process over a real folder. Rows are compared bit for bit with a model that applied the same pushes; so is the
state of the optimizer, by one more push.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import pytest
import torch

from cpr_contract.roster import Counters
from cpr_trainer.access import find_access
from cpr_trainer.exchange import Exchange, ShardsAwayError
from cpr_trainer.placement import Placement
from cpr_trainer.tables.arena import Arena
from cpr_trainer.tables.seeding import Seeding
from support.shard_job import KEY, PATIENCE_S, ShardProcess, shard_roster, small_job, trainer_roster

pytestmark = [pytest.mark.dist, pytest.mark.timeout(300)]

KILLED_SHARD = Path(__file__).parents[1] / "support" / "killed_shard.py"
ROWS, DIM, BATCH = (60, 5), 4, 10


class Story:
    """One shard over its incarnations, one trainer that the test plays, and a model of what the rows should be."""

    def __init__(self, folder: Path) -> None:
        job = small_job(folder, rows=ROWS, dim=DIM)
        rules = replace(job.snapshots, rebase="Consecutive", strategy="MFU", fraction=1.0)
        self.job = replace(job, snapshots=rules)
        self.folder = folder
        self.store = folder / "store" / "bucket"
        self.placement = Placement.of(self.job.model, 1)
        every = np.stack([np.arange(60), np.arange(60) % 5], axis=1)
        self.rows = find_access(self.placement, every).unique
        self.slots = torch.from_numpy(self.placement.slots_on(0, self.rows.numbers))
        self.shards: list[ShardProcess] = []
        self.exchange: Exchange | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
        for shard in self.shards:
            shard.kill()

    @property
    def shard(self) -> ShardProcess:
        return self.shards[-1]

    def start(self, *program: str) -> None:
        """Start the next incarnation."""
        incarnation = len(self.shards) + 1
        roster = shard_roster(incarnation=incarnation, newest_incarnation=incarnation)
        command = (program,) if program else ()
        self.shards.append(ShardProcess.start(self.folder, self.job, roster, *command))

    def join(self) -> Exchange:
        """Be a trainer with nothing unacknowledged."""
        self.leave()
        self.shard.wait_ready()
        self.exchange = Exchange(self.job, 0, len(self.shards), KEY, 1000)
        self.exchange.follow(trainer_roster((self.shard.peer,)))
        self.exchange.wait_ready(PATIENCE_S)
        return self.exchange

    def leave(self) -> None:
        if self.exchange is not None:
            self.exchange.close()

    def push(self, *steps: int, cut: int = 0) -> None:
        """Push some steps and wait for their acknowledgements; a shard that dies meanwhile is what the test wants."""
        assert self.exchange is not None
        with contextlib.suppress(ShardsAwayError):
            for step in steps:
                mask = touched(step)
                self.exchange.push(step, self.rows.select(mask), gradients(step)[mask], cut, PATIENCE_S)
            self.exchange.settle(PATIENCE_S)

    def cut(self, *steps: int) -> None:
        """Push up to a cut, and wait until it is committed, or the shard is dead."""
        self.push(*steps, cut=steps[-1])
        self.wait_for(lambda: self.saved_step() == steps[-1] or self.dead())

    def saved_step(self) -> int:
        assert self.exchange is not None
        return self.exchange.saved()[0].step

    def dead(self) -> bool:
        return self.shard.process.poll() is not None

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def expected(self, *steps: int) -> Arena:
        """The rows after exactly these steps."""
        arena = Arena.empty(self.job, self.placement.size(0))
        arena.seed(self.placement, 0, Seeding(self.job.model, self.job.data.seed))
        for step in steps:
            mask = touched(step)
            arena.apply(self.slots[mask], gradients(step)[mask])
        return arena

    def assert_rows(self, expected: Arena) -> None:
        exchange = self.join()
        found = exchange.lookup(90, self.rows).result(PATIENCE_S)
        assert torch.equal(found, expected.gather(self.slots))
        ones = torch.ones(len(self.rows), DIM)
        expected.apply(self.slots, ones)
        exchange.push(90, self.rows, ones, 0, PATIENCE_S)
        exchange.settle(PATIENCE_S)
        found = exchange.lookup(91, self.rows).result(PATIENCE_S)
        assert torch.equal(found, expected.gather(self.slots)), "the optimizer's state is that of the save, too"


def touched(step: int) -> np.ndarray:
    """Which of the 65 rows a step changes: some, never the same."""
    return np.arange(sum(ROWS)) * step % 7 < 4


def gradients(step: int) -> torch.Tensor:
    return torch.randn(sum(ROWS), DIM, generator=torch.Generator().manual_seed(step))


def first_cut(story: Story) -> None:
    story.cut(1, 2, 3, 4)


def second_cut(story: Story) -> None:
    story.cut(1, 2, 3, 4)
    story.cut(5, 6, 7, 8)


def priority_save(story: Story) -> None:
    """One is marked after step 6, and may be committed after step 9."""
    story.cut(1, 2, 3, 4)
    story.push(5, 6)
    story.shard.give(shard_roster(counters=Counters(2, 1, 1), priority_interval_s=0.01))
    story.wait_for(lambda: any(story.store.rglob("*-priority")) or story.dead())
    story.push(7, 8, 9)


def flush(story: Story) -> None:
    story.cut(1, 2, 3, 4)
    story.push(5, 6)
    story.shard.process.terminate()


STORIES: dict[str, tuple[Callable[[Story], None], str, tuple[int, int], tuple[int, int]]] = {
    # what is saved: how, in which folder, and the steps of (rows, progress) if it is not committed, and if it is
    "the first cut": (first_cut, "step-000000004", (0, 0), (4, 4)),
    "a cut on another": (second_cut, "step-000000008", (4, 4), (8, 8)),
    "the most important rows": (priority_save, "step-000000006-priority", (4, 4), (6, 4)),
    "a flush": (flush, "step-000000006-flush", (4, 4), (6, 6)),
}
STAGES: dict[str, tuple[str, str, bool]] = {
    # stage: the object that is being written, what is done of it, whether the save counts
    "before the first part": ("part-00000", "before", False),
    "half of the first part": ("part-00000", "half", False),
    "between two parts": ("part-00001", "after", False),
    "before the manifest": ("manifest.json", "before", False),
    "half of the manifest": ("manifest.json", "half", False),
    "after the manifest": ("manifest.json", "after", True),
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("kind", STORIES)
def test_a_shard_killed_while_it_saves(kind: str, stage: str, tmp_path: Path) -> None:
    tell, folder, without, with_it = STORIES[kind]
    object_name, moment, counts = STAGES[stage]
    rows_step, progress_step = with_it if counts else without
    with Story(tmp_path) as story:
        story.start(str(KILLED_SHARD), f"/{folder}/{object_name}", moment)
        story.join()
        tell(story)
        assert story.shard.end() == -signal.SIGKILL
        story.start()
        report = story.shard.wait_ready()
        assert report.restored_samples == BATCH * progress_step
        story.assert_rows(story.expected(*range(1, rows_step + 1)))


@pytest.mark.parametrize("moment", ["before", "half", "after"])
def test_a_shard_killed_while_it_records_what_it_restored(moment: str, tmp_path: Path) -> None:
    with Story(tmp_path) as story:
        story.start()
        story.join()
        story.cut(1, 2, 3, 4)
        story.push(5, 6)
        story.shard.kill()
        story.start(str(KILLED_SHARD), "inc-0002/origin.json", moment)
        assert story.shard.end() == -signal.SIGKILL
        story.start()
        assert story.shard.wait_ready().restored_samples == BATCH * 4
        story.assert_rows(story.expected(1, 2, 3, 4))


def test_what_was_restored_with_fresher_rows_is_saved_and_restored_again(tmp_path: Path) -> None:
    """Rows of a priority save are changes that no complete save holds: the next one must have them."""
    with Story(tmp_path) as story:
        story.start(str(KILLED_SHARD), "step-000000006-priority/manifest.json", "after")
        story.join()
        priority_save(story)
        assert story.shard.end() == -signal.SIGKILL
        story.start()
        story.join()
        story.cut(10)
        story.shard.kill()
        story.start()
        assert story.shard.wait_ready().restored_samples == BATCH * 10
        story.assert_rows(story.expected(1, 2, 3, 4, 5, 6, 10))
