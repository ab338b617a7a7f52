"""One shard as a real process over its incarnations, with a trainer that the test plays and a model of its rows."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from cpr_trainer.arrays import Floats
from cpr_trainer.embedding.access import find_access
from cpr_trainer.embedding.arena import Arena
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.embedding.segments import Seeding
from cpr_trainer.embedding.unique_rows import UniqueRows
from cpr_trainer.exchange import Exchange, ShardsUnavailableError
from support import warm_start
from support.shard_job import KEY, TIMEOUT_S, ShardProcess, shard_roster, small_job, trainer_roster
from support.warm_start import Main

ROWS, DIM, BATCH = (60, 5), 4, 10


class ShardScenario:
    """One shard over its incarnations, one trainer that the test plays, and a model of what the rows should be."""

    def __init__(self, folder: Path, environ: Mapping[str, str] | None = None, **rules: Any) -> None:
        job = small_job(folder, rows=ROWS, dim=DIM)
        snapshots = replace(job.snapshots, rebase="Consecutive", strategy="MFU", fraction=1.0)
        self.job = replace(job, snapshots=replace(snapshots, **rules))
        self.folder = folder
        self.environ = environ or {}
        self.store = folder / "store" / "bucket"
        self.placement = Placement.of(self.job.model, 1)
        every = np.stack([np.arange(60), np.arange(60) % 5], axis=1)
        self.rows = find_access(self.placement, every).unique
        self.slots = self.placement.slots_on(0, self.rows.numbers)
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

    def start(self, main: Main = warm_start.run) -> None:
        """Start the next incarnation."""
        incarnation = len(self.shards) + 1
        roster = shard_roster(incarnation=incarnation, newest_incarnation=incarnation)
        self.shards.append(ShardProcess.start(self.folder, self.job, roster, main, **self.environ))

    def join(self) -> Exchange:
        """Be a trainer with nothing unacknowledged."""
        self.leave()
        self.shard.wait_ready()
        self.exchange = Exchange(self.job, 0, len(self.shards), KEY, 1000)
        self.exchange.follow(trainer_roster((self.shard.peer,)))
        self.exchange.wait_ready(TIMEOUT_S)
        return self.exchange

    def leave(self) -> None:
        if self.exchange is not None:
            self.exchange.close()

    def push(self, *steps: int, cut: int = 0) -> None:
        """Push some steps and wait for their acknowledgements; a shard that dies meanwhile is what the test wants."""
        assert self.exchange is not None
        with contextlib.suppress(ShardsUnavailableError):
            for step in steps:
                self.exchange.push(step, self.rows_of(step), gradients(step)[touched(step)], cut, TIMEOUT_S)
            self.exchange.settle(TIMEOUT_S)

    def rows_of(self, step: int) -> UniqueRows:
        """The rows that a step changes."""
        return self.rows.select(touched(step))

    def cut(self, *steps: int) -> None:
        """Push up to a cut, and wait until it is committed, or the shard is dead."""
        self.push(*steps, cut=steps[-1])
        self.wait_for(lambda: self.saved_step() == steps[-1] or self.dead())

    def saved_step(self) -> int:
        assert self.exchange is not None
        return self.exchange.saved()[0].step

    def dead(self) -> bool:
        return self.shard.process.exit_code is not None

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def expected(self, *steps: int) -> Arena:
        """The rows after exactly these steps."""
        arena = Arena.empty(self.job, self.placement.size(0))
        arena.seed(self.placement, 0, Seeding.of(self.job.model, self.job.data.seed))
        for step in steps:
            mask = touched(step)
            arena.apply(self.slots[mask], self.rows.numbers[mask], gradients(step)[mask], step)
        return arena

    def assert_rows(self, expected: Arena) -> None:
        exchange = self.join()
        found = exchange.lookup(90, self.rows).result(TIMEOUT_S)
        assert np.array_equal(found, expected.rows[self.slots])
        ones = np.ones((len(self.rows), DIM), np.float32)
        expected.apply(self.slots, self.rows.numbers, ones, 90)
        exchange.push(90, self.rows, ones, 0, TIMEOUT_S)
        exchange.settle(TIMEOUT_S)
        found = exchange.lookup(91, self.rows).result(TIMEOUT_S)
        assert np.array_equal(found, expected.rows[self.slots]), "the optimizer's state is that of the save, too"


def push_through(
    scenario: ShardScenario, *steps: int, cut: int = 0, pushed: Callable[[int], object] = lambda _step: None
) -> None:
    """Push some steps until all are acknowledged, however often the server is killed meanwhile.

    `pushed` is called after each step is sent.
    """
    exchange = scenario.exchange
    assert exchange is not None

    def retry(act: Callable[[], None]) -> None:
        while True:
            try:
                return act()
            except ShardsUnavailableError:
                exchange.wait_ready(TIMEOUT_S)

    for step in steps:
        values = gradients(step)[touched(step)]
        retry(lambda s=step, v=values: exchange.push(s, scenario.rows_of(s), v, cut, TIMEOUT_S))
        pushed(step)
    retry(lambda: exchange.settle(TIMEOUT_S))


def touched(step: int) -> np.ndarray:
    """Return the mask of the 65 rows that a step changes: some, never the same."""
    return np.arange(sum(ROWS)) * step % 7 < 4


def gradients(step: int) -> Floats:
    return np.random.default_rng(step).standard_normal((sum(ROWS), DIM), np.float32)
