"""One process of a trainer after the other, in one file: killed at any line of a push. With SGD of rate 1 and integer
gradients below 2^24 a row is minus the sum of its gradients, so any push that is lost or doubled shows."""

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
from cpr_trainer.embedding.placement import UniqueRows
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
    House.folder = tmp_path


class House:
    """A trainer's file, and its exchanges, one after the other. `kept`: the last step that is complete."""

    folder: Path

    def __init__(self, job: JobSpec, rows: UniqueRows) -> None:
        self.job, self.rows = job, rows
        self.file = ResumeFile.new()
        self.disk = self.folder / f"pushes-{next(NUMBERS)}"
        self.kept, self.standing = 0, np.full((2, 4), -1)
        self.exchange = self._exchange()

    def _exchange(self) -> Exchange:
        size_bytes = self.job.spill_bytes
        spill = Spill(self.disk, size_bytes, self.file) if size_bytes else None
        return Exchange(self.job, 0, 1, KEY, 1000, file=self.file, spill=spill)

    def join(self, *shards: ShardThread, generation: int = 1, roster: int = 1) -> None:
        follow(self.exchange, *shards, generation=generation, roster=roster)
        self.exchange.wait_ready(WAIT_S)

    def die(self) -> None:
        """The next life begins where the last was killed."""
        changed = self.exchange._loop.changed
        while changed._is_owned():  # type: ignore[attr-defined]
            changed.release()
        self.exchange.close()
        assert self.exchange._ring is not None
        self.exchange._ring._thread.shutdown()  # it dies with its process
        self.file = ResumeFile(self.file.descriptor)
        self.exchange = self._exchange()
        self.exchange.resume(1, self.kept, self.standing)

    def push(self, *steps: int) -> None:
        def keep(standing: Any) -> None:
            assert standing is not None
            self.kept, self.standing = step, standing

        for step in steps:
            if step > self.kept:
                self.exchange.push(step, self.rows, gradients(self.rows, step), 0, WAIT_S, keep)

    def settle(self) -> None:
        self.exchange.settle(WAIT_S)

    def values(self) -> np.ndarray:
        found: np.ndarray = self.exchange.lookup(self.kept + 1, self.rows).result(WAIT_S)
        return found


@pytest.fixture
def houses(job: JobSpec, rows: UniqueRows) -> Iterator[Callable[[], House]]:
    made: list[House] = []

    def make() -> House:
        made.append(House(job, rows))
        return made[-1]

    yield make
    for house in made:
        house.exchange.close()


def gradients(rows: UniqueRows, step: int) -> np.ndarray:
    return np.random.default_rng(step).integers(-999, 999, (len(rows), 4)).astype(np.float32)


def sums(rows: UniqueRows, last: int) -> np.ndarray:
    found: np.ndarray = -np.sum([gradients(rows, step) for step in range(1, last + 1)], axis=0)
    return found


def zeros(*shards: ShardThread) -> None:
    for shard in shards:
        shard.do(lambda shard=shard: (shard.ready(), shard.arena.rows.fill(0)))


def test_a_push_killed_at_any_line_is_applied_once(
    houses: Callable[[], House], shards: Shards, rows: UniqueRows
) -> None:
    """Whatever was sent is kept; and a step that is not kept was not sent at all, to any shard, and is taken again."""
    kept = set[int]()
    for line in count(1, 7):
        zeros(*shards)
        house = houses()
        house.join(*shards)
        house.push(1, 2)
        house.settle()
        died = killed_at(line, lambda h=house: h.push(3), *FILES)
        house.die()
        kept.add(house.kept)
        house.join(*shards)
        house.push(3, 4)
        house.settle()
        assert np.array_equal(house.values(), sums(rows, 4)), f"killed at line {line}"
        for shard in shards:
            assert shard.progress.row_updates.lost == 0
        house.exchange.close()
        if not died:
            break
    assert line > 100
    assert kept == {2, 3}


def test_a_shard_that_lost_everything_gets_it_from_the_next_process(
    houses: Callable[[], House], serve: Callable[..., ShardThread], rows: UniqueRows, job: JobSpec
) -> None:
    """With replay all pushes since the last save are the next process', however many lives ago they were made."""
    shards = serve(0), serve(1)
    zeros(*shards)
    house = houses()
    for last in (3, 6):
        house.join(*shards)
        house.push(*range(last - 2, last + 1))
        house.settle()
        house.die()
    if not job.replay.enabled:
        assert house.exchange.forgotten() == ()
        return
    heir = serve(0, 2)
    zeros(heir)
    house.join(heir, shards[1], roster=2)
    house.push(7)
    house.settle()
    assert np.array_equal(house.values(), sums(rows, 7))
    assert house.exchange.forgotten() == (0, 0)


def test_memory_that_is_not_needed_any_more_is_used_again(
    houses: Callable[[], House], shards: Shards, job: JobSpec
) -> None:
    """Neither lives nor pushes without end make the file grow."""
    zeros(*shards)
    house = houses()
    for life in range(1, 5):
        house.join(*shards)
        house.push(*range(25 * (life - 1) + 1, 25 * life + 1))
        house.settle()
        house.die()
    size = sum(len(area.memory) for area in house.file.areas(Kind.PUSHES))
    assert size <= max(job.replay_bytes * 17 // 16, 3 << 20)


def test_another_generation_inherits_nothing(houses: Callable[[], House], shards: Shards) -> None:
    zeros(*shards)
    house = houses()
    house.join(*shards)
    house.push(1, 2)
    house.settle()
    house.die()
    for shard in shards:
        shard.do(lambda shard=shard: shard.ready(generation=2))
    house.join(*shards, generation=2, roster=2)
    house.settle()
    assert house.exchange.applied() == (0, 0)
    assert not house.exchange._ring.resumed  # type: ignore[union-attr]
