"""One simulated job, from failure to failure, with a closed form in between.

The clock counts training, first-time or repeated. Saves and recoveries stop it and are summed separately, as in CPR's
equations: no failure happens during a save or a recovery, and a cut is committed after `commit_s` of training. The
last step's save is the model, not a cost of fault tolerance.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

from cprjob_bench.simulation.simulated_job import FLUSH_AGE_S, Failure, Job

#: A job with more recoveries is aborted as unfinished.
MAX_RECOVERIES = 10_000
#: Cuts at a smaller distance (as a portion of the job) are the same: the distance is a rounding error.
ROUNDING = 1e-9
_NO_FAILURE = Failure(math.inf, 0)


class Decision(NamedTuple):
    """`full`: any loss rolls back. `holds_s`: the training time for which it is valid without a failure.

    `replays`: nothing is lost, because trainers repeat pushes. `parity`: lost shards restore their last flush, unless
    they are too close to each other for parity.
    """

    full: bool
    interval_s: float
    holds_s: float = math.inf
    replays: bool = False
    parity: bool = False


class Strategy(Protocol):
    """Decides about recoveries and saves; each job has its own instance."""

    @property
    def enforces_budget(self) -> bool:
        """True if a loss beyond the budget becomes a rollback."""
        ...

    def decide(self, budget_s: float, left_s: float) -> Decision:
        """Decide at the start, after each failure, and when the last decision expires.

        `budget_s` are the shard-seconds left to lose, `left_s` the training left since the last cut.
        """
        ...

    def quiet(self, seconds: float) -> None:
        """Record training time without a failure."""
        ...

    def failed(self, shards: int) -> None:
        """Record a failure of `shards` shards."""
        ...


@dataclass(slots=True)
class Outcome:
    """The costs of one job: `lost_s` seconds were trained or pushed again, `spent_s` shard-seconds stay lost.

    `replayed_s` of the former were pushed again.
    `flushing_s` seconds were trained with flushes to parity.
    """

    saves: int = 0
    recoveries: int = 0
    rollbacks: int = 0
    lost_s: float = 0.0
    replayed_s: float = 0.0
    spent_s: float = 0.0
    flushing_s: float = 0.0
    finished: bool = True


def run(job: Job, strategy: Strategy, failures: Iterator[Failure], rng: random.Random) -> Outcome:
    """Train one job to its end; `rng` draws the shards of each failure."""
    training = _Training(job)
    out = training.out
    gap, lost = next(failures, _NO_FAILURE)
    decision = strategy.decide(job.budget_s, job.total_s)
    while True:
        step = min(gap, decision.holds_s, job.total_s - training.now)
        training.advance(step, decision.interval_s)
        out.flushing_s += step * decision.parity
        strategy.quiet(step)
        if training.now >= job.total_s:
            return out
        if step < gap:
            gap -= step
        else:
            if decision.parity and is_covered(job, lost, rng) and training.rebuild(lost, replays=decision.replays):
                pass
            elif decision.replays:
                training.replay()
            else:
                training.fail(lost, rng, rolls_back=decision.full, enforces_budget=strategy.enforces_budget)
            strategy.failed(lost)
            gap, lost = next(failures, _NO_FAILURE)
            if out.recoveries >= MAX_RECOVERIES:
                out.finished = False
                return out
        decision = strategy.decide(job.budget_s - out.spent_s, job.total_s - training.cut)


def is_covered(job: Job, lost: int, rng: random.Random) -> bool:
    """Draw the shards of a failure, and return whether parity recovers all of them.

    It does if any two are more than `data_shards` apart on the ring.
    """
    drawn = sorted(rng.sample(range(job.shards), lost))
    return all(later - one > job.data_shards for one, later in pairwise((*drawn, drawn[0] + job.shards)))


class _Training:
    """A job in training: its progress `now`, at the last `cut`, and at the last committed save."""

    __slots__ = ("_charged", "_job", "_pending", "_rounding", "cut", "now", "out", "saved")

    def __init__(self, job: Job) -> None:
        self.out = Outcome()
        self.now = self.cut = self.saved = 0.0
        self._job = job
        self._pending = False  # the last cut is not committed yet
        self._charged: dict[int, float] = {}  # the end of the lost range after `saved`, by shard
        self._rounding = ROUNDING * job.total_s

    def advance(self, step: float, interval: float) -> None:
        """Train `step` seconds with a cut every `interval`, which is no shorter than a commit."""
        end = self.now + step
        due = max(self.cut + interval, self.now)
        remaining = end - self._rounding - due
        if remaining > 0:
            more = int(remaining / interval)
            if more:
                self.saved = due + (more - 1) * interval
            elif self._pending:
                self.saved = self.cut
            self.cut, self._pending = due + more * interval, True
            self.out.saves += more + 1
        if self._pending and self.cut + self._job.costs.commit_s <= end:
            self.saved, self._pending = self.cut, False
        self.now = end

    def replay(self) -> None:
        """Recover from a failure by replay: training waits until the lost pushes are repeated."""
        self.out.recoveries += 1
        self._replay(self.now - self.saved)
        self._pending = False

    def rebuild(self, shards: int, *, replays: bool) -> bool:
        """Recover from a failure by parity, at the last flush. False if the loss since then exceeds the budget.

        With `replays` later updates are pushed again, otherwise they are lost.
        """
        job, out = self._job, self.out
        age = min(FLUSH_AGE_S, self.now - self.saved)
        if not replays and out.spent_s + shards * age > job.budget_s:
            return False
        out.recoveries += 1
        self._pending = False
        if replays:
            self._replay(age)
        else:
            out.spent_s += shards * age
        return True

    def _replay(self, age_s: float) -> None:
        took_s = self._job.replay * age_s
        self.out.lost_s += took_s
        self.out.replayed_s += took_s

    def fail(self, shards: int, rng: random.Random, *, rolls_back: bool, enforces_budget: bool) -> None:
        """Recover from a failure by saves: the failed shards lose the training since the last save, or all roll back.

        A shard loses a sample only once. A cut that is not committed yet is void.
        """
        job, out, saved = self._job, self.out, self.saved
        self._charged = {shard: end for shard, end in self._charged.items() if end > saved}
        # The first failure after a save takes shards 0, 1, ... without loss of generality.
        lost = rng.sample(range(job.shards), shards) if self._charged else range(shards)
        charge = sum(self.now - self._charged.get(shard, saved) for shard in lost)
        out.recoveries += 1
        self._pending = False
        if rolls_back or (enforces_budget and out.spent_s + charge > job.budget_s):
            out.rollbacks += 1
            out.lost_s += self.now - saved
            out.spent_s -= sum(end - saved for end in self._charged.values())
            self._charged = {}
            self.now = self.cut = saved
        else:
            out.spent_s += charge
            self._charged.update(dict.fromkeys(lost, self.now))
