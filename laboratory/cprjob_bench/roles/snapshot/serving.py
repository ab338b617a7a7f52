"""What training notices of a save: a real shard process, trained at an even pace while it saves under the limit."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from cpr_contract import CONTRACT_VERSION
from cpr_contract.roster import TrainerRoster
from cpr_contract.spec import JobSpec
from cpr_trainer.access import find_access
from cpr_trainer.errors import TrainerError
from cpr_trainer.exchange import Exchange
from cpr_trainer.placement import Placement
from cpr_trainer.rows import UniqueRows
from cprjob_bench.documents.snapshot import Latency, Round, Window
from cprjob_bench.roles.snapshot.shard_process import COUNTERS, KEY, ShardProcess
from cprjob_bench.roles.snapshot.workload import gradients_for, step_rows

#: From the start of one step to that of the next: the shard is busy for a part of it, as shards are.
_PACE_S = 0.01
_PATIENCE_S = 120.0
#: Rows of one push that only serves to change them.
_CHUNK = 1 << 16


class SaveGivenUpError(TrainerError):
    """Training changed rows faster than the store takes them."""

    reason = "SaveGivenUp"

    def __init__(self) -> None:
        super().__init__(
            "The shard gave up a save: training outran it.",
            "The store is too slow for it: use a faster one, or more --rows.",
        )


@dataclass(slots=True, eq=False)
class Trainer:
    """The one trainer of a shard process."""

    job: JobSpec
    shard: ShardProcess
    exchange: Exchange
    placement: Placement
    rng: np.random.Generator
    step: int = 0

    @classmethod
    @contextlib.contextmanager
    def of(cls, job: JobSpec, shard: ShardProcess) -> Iterator[Self]:
        """Connect to a shard once it serves."""
        shard.wait_ready()
        exchange = Exchange(job, 0, 1, KEY, job.data.samples or 1)
        exchange.follow(
            TrainerRoster(
                contract=CONTRACT_VERSION,
                counters=COUNTERS,
                index=0,
                incarnation=1,
                newest_incarnation=1,
                leader=0,
                trainers=(),
                shards=(shard.peer,),
                anchor=None,
                dense_floor_samples=0,
                interval_s=60.0,
            )
        )
        with contextlib.closing(exchange):
            exchange.wait_ready(_PATIENCE_S)
            yield cls(job, shard, exchange, Placement.of(job.model, 1), np.random.default_rng(1))

    def change_everything(self) -> None:
        """Push to every row of the one table once: the next save has to hold all of them."""
        for first in range(0, self.placement.total, _CHUNK):
            ids = np.arange(first, min(first + _CHUNK, self.placement.total))[:, np.newaxis]
            self._push(find_access(self.placement, ids).unique, 0)

    def round(self, window_s: float) -> Round:
        """Train for a while without a save, then from a cut to its commit. Raises SaveGivenUpError.

        What has changed before is to be saved: `change_everything`.
        """
        end_s = time.monotonic() + window_s
        idle = self._window(lambda: time.monotonic() < end_s, cut=False)
        cut_step = self.step + 1
        saving = self._window(lambda: not self._saved(cut_step), cut=True)
        return Round(idle, saving, self.shard.figure("cut_seconds"))

    def _window(self, goes_on: Callable[[], bool], *, cut: bool) -> Window:
        """Train steps at an even pace, at least one; the first is the cut if there is one."""
        times = _Times()
        cut_step = self.step + 1 if cut else 0
        started_s = time.monotonic()
        while True:
            rows = step_rows(self.placement, self.rng)
            times.lookup.append(self._look_up(rows))
            times.push.append(self._push(rows, cut_step))
            if not goes_on():
                return times.window()
            time.sleep(max(0.0, started_s + len(times.push) * _PACE_S - time.monotonic()))

    def _look_up(self, rows: UniqueRows) -> float:
        started_s = time.perf_counter()
        self.exchange.lookup(self.step + 1, rows).result(_PATIENCE_S)
        return time.perf_counter() - started_s

    def _push(self, rows: UniqueRows, cut_step: int) -> float:
        self.step += 1
        gradients = gradients_for(rows, self.job.model.embedding_dim)
        started_s = time.perf_counter()
        self.exchange.push(self.step, rows, gradients, cut_step, _PATIENCE_S)
        self.exchange.settle(_PATIENCE_S)
        return time.perf_counter() - started_s

    def _saved(self, cut_step: int) -> bool:
        self.shard.check()
        (state,) = self.exchange.saved()
        if state.given_up_step == cut_step:
            raise SaveGivenUpError
        return state.step >= cut_step


@dataclass(slots=True, eq=False)
class _Times:
    """Seconds that each step waited."""

    lookup: list[float] = field(default_factory=list)
    push: list[float] = field(default_factory=list)

    def window(self) -> Window:
        return Window(len(self.push), _latency(self.lookup), _latency(self.push))


def _latency(seconds: list[float]) -> Latency:
    p50, p99 = np.percentile(np.array(seconds) * 1e3, (50, 99)).tolist()
    return Latency(p50, p99)
