"""Successive processes of a trainer with one file, killed at any line of a push.

With SGD of rate 1 and integer gradients below 2^24 a row is minus the sum of its gradients: a lost or doubled push
shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpr_contract.spec import JobSpec
from cpr_trainer.embedding.memory import Kind, ResumeFile
from cpr_trainer.embedding.unique_rows import UniqueRows
from cpr_trainer.exchange import Exchange
from cpr_trainer.exchange.pools import Spill
from support.exchanges import WAIT_S, follow
from support.killed_lines import killed_at
from support.shard_job import KEY, small_job
from support.shard_thread import ShardThread

FILES = ("exchange/exchange.py", "exchange/ring.py", "exchange/segments.py", "exchange/outbox.py", "exchange/link.py")
Shards = tuple[ShardThread, ShardThread]
NUMBERS = count(1)


@pytest.fixture(params=[(0, 0), (1 << 20, 0), (1 << 13, 1 << 16)], ids=["acknowledged", "protected", "spilled"])
def job(request: pytest.FixtureRequest) -> JobSpec:
    job = small_job(Path("unused"), shards=2)
    sgd = replace(job.model.sparse_optimizer, kind="SGD", learning_rate=1.0)
    return replace(
        job, model=replace(job.model, sparse_optimizer=sgd), replay_bytes=request.param[0], spill_bytes=request.param[1]
    )


@pytest.fixture
def shards(serve: Callable[..., ShardThread]) -> Shards:
    return serve(0), serve(1)


@pytest.fixture(autouse=True)
def disk(tmp_path: Path) -> None:
    RestartedProcess.folder = tmp_path


class RestartedProcess:
    """The file of a trainer, and its successive exchanges. `recorded_step`: the last complete step."""

    folder: Path

    def __init__(self, job: JobSpec, rows: UniqueRows) -> None:
        self.job, self.rows = job, rows
        self.file = ResumeFile.new()
        self.disk = self.folder / f"pushes-{next(NUMBERS)}"
        self.recorded_step, self.resume_state = 0, np.full((2, 4), -1)
        self.exchange = self._exchange()

    def _exchange(self) -> Exchange:
        size_bytes = self.job.spill_bytes
        spill = Spill(self.disk, size_bytes, self.file) if size_bytes else None
        return Exchange(self.job, 0, 1, KEY, 1000, file=self.file, spill=spill)

    def join(self, *shards: ShardThread, generation: int = 1, roster: int = 1) -> None:
        follow(self.exchange, *shards, generation=generation, roster=roster)
        self.exchange.wait_ready(WAIT_S)

    def die(self) -> None:
        """Kill the process; the next one resumes at its last complete step."""
        changed = self.exchange._loop.changed
        while changed._is_owned():  # type: ignore[attr-defined]
            changed.release()
        self.exchange.close()
        assert self.exchange._ring is not None
        self.exchange._ring._thread.shutdown()  # it dies with its process
        self.file = ResumeFile(self.file.descriptor)
        self.exchange = self._exchange()
        self.exchange.resume(1, self.recorded_step, self.resume_state)

    def push(self, *steps: int) -> None:
        def keep(resume_state: Any) -> None:
            assert resume_state is not None
            self.recorded_step, self.resume_state = step, resume_state

        for step in steps:
            if step > self.recorded_step:
                self.exchange.push(step, self.rows, gradients(self.rows, step), 0, WAIT_S, keep)

    def settle(self) -> None:
        self.exchange.settle(WAIT_S)

    def values(self) -> np.ndarray:
        found: np.ndarray = self.exchange.lookup(self.recorded_step + 1, self.rows).result(WAIT_S)
        return found


@pytest.fixture
def new_process(job: JobSpec, rows: UniqueRows) -> Iterator[Callable[[], RestartedProcess]]:
    made: list[RestartedProcess] = []

    def make() -> RestartedProcess:
        made.append(RestartedProcess(job, rows))
        return made[-1]

    yield make
    for process in made:
        process.exchange.close()


def gradients(rows: UniqueRows, step: int) -> np.ndarray:
    return np.random.default_rng(step).integers(-999, 999, (len(rows), 4)).astype(np.float32)


def sums(rows: UniqueRows, last: int) -> np.ndarray:
    found: np.ndarray = -np.sum([gradients(rows, step) for step in range(1, last + 1)], axis=0)
    return found


def zeros(*shards: ShardThread) -> None:
    for shard in shards:
        shard.do(lambda shard=shard: (shard.ready(), shard.arena.rows.fill(0)))


def test_a_push_killed_at_any_line_is_applied_once(
    new_process: Callable[[], RestartedProcess], shards: Shards, rows: UniqueRows
) -> None:
    """A sent step is kept. A step that is not kept was sent to no shard, and is repeated."""
    recorded = set[int]()
    for line in count(1, 7):
        zeros(*shards)
        process = new_process()
        process.join(*shards)
        process.push(1, 2)
        process.settle()
        died = killed_at(line, lambda each=process: each.push(3), *FILES)
        process.die()
        recorded.add(process.recorded_step)
        process.join(*shards)
        process.push(3, 4)
        process.settle()
        assert np.array_equal(process.values(), sums(rows, 4)), f"killed at line {line}"
        for shard in shards:
            assert shard.progress.row_updates.lost == 0
        process.exchange.close()
        if not died:
            break
    assert line > 100
    assert recorded == {2, 3}


def test_shard_without_memory_gets_its_pushes_from_the_next_process(
    new_process: Callable[[], RestartedProcess], serve: Callable[..., ShardThread], rows: UniqueRows, job: JobSpec
) -> None:
    """With replay the next process has all pushes since the last save, of any former process."""
    shards = serve(0), serve(1)
    zeros(*shards)
    process = new_process()
    for last in (3, 6):
        process.join(*shards)
        process.push(*range(last - 2, last + 1))
        process.settle()
        process.die()
    if not job.replay.enabled:
        assert process.exchange.forgotten() == ()
        return
    replacement = serve(0, 2)
    zeros(replacement)
    process.join(replacement, shards[1], roster=2)
    process.push(7)
    process.settle()
    assert np.array_equal(process.values(), sums(rows, 7))
    assert process.exchange.forgotten() == (0, 0)


def test_memory_that_is_not_needed_any_more_is_used_again(
    new_process: Callable[[], RestartedProcess], shards: Shards, job: JobSpec
) -> None:
    """The file grows neither with processes nor with pushes."""
    zeros(*shards)
    process = new_process()
    for number in range(1, 5):
        process.join(*shards)
        process.push(*range(25 * (number - 1) + 1, 25 * number + 1))
        process.settle()
        process.die()
    size = sum(len(area.memory) for area in process.file.areas(Kind.PUSHES))
    assert size <= max(job.replay_bytes * 17 // 16, 3 << 20)


def test_another_generation_inherits_nothing(new_process: Callable[[], RestartedProcess], shards: Shards) -> None:
    zeros(*shards)
    process = new_process()
    process.join(*shards)
    process.push(1, 2)
    process.settle()
    process.die()
    for shard in shards:
        shard.do(lambda shard=shard: shard.ready(generation=2))
    process.join(*shards, generation=2, roster=2)
    process.settle()
    assert process.exchange.applied() == (0, 0)
    assert not process.exchange._ring.resumed  # type: ignore[union-attr]
