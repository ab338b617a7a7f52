"""Strategies of simulated jobs: fixed rules as baselines, and the operator's own closed loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cpr_operator.policy import equations
from cpr_operator.policy.inputs import after_failure, after_quiet, mean_rho, prior, uncovered_at_least
from cpr_operator.policy.law import SHORTEST_S, Odds, choose
from cpr_operator.policy.plan import NOISE, STEP
from cprjob_bench.simulation.engine import Decision, Strategy
from cprjob_bench.simulation.simulated_job import Job


def steady_s(beta_s: float, left_s: float, total_s: float) -> float:
    """Return the seconds without a failure until the failure rate or the remaining training changes enough."""
    return min(STEP * beta_s, max(STEP * left_s, NOISE * total_s))


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """One fixed decision. A loss is charged even if it exceeds the budget, unless `enforces_budget`."""

    decision: Decision
    enforces_budget: bool = False

    def decide(self, budget_s: float, left_s: float) -> Decision:  # noqa: ARG002 -- the protocol's parameters
        """Return the fixed decision."""
        return self.decision

    def quiet(self, seconds: float) -> None:
        """Do nothing."""

    def failed(self, shards: int) -> None:
        """Do nothing."""


class ClosedLoop:
    """The operator's closed loop: it estimates the rate, counts the remaining budget, and applies the law each time."""

    enforces_budget = True

    def __init__(self, job: Job, *, replays: bool = False, parity: bool = False) -> None:
        self._job = job
        self._replays = replays
        self._parity = parity
        self._estimate = prior(job.assumed_mtbf_s, job.assumed_lost)

    def decide(self, budget_s: float, left_s: float) -> Decision:
        """Return the law's choice, valid until its inputs change noticeably."""
        job, estimate = self._job, self._estimate
        lost = min(estimate.lost_per_failure, job.shards)
        replay, mtbf_s = job.replay if self._replays else None, estimate.mtbf_s
        if self._parity:
            # Saves serve only failures that parity does not cover.
            portion = uncovered_at_least(job.shards, job.data_shards, lost)
            if replay is None:
                mtbf_s /= portion
            else:
                replay = mean_rho(replay, portion)
        odds = Odds(budget_s, left_s, mtbf_s, lost, job.costs.save_stall_s, job.costs.commit_s, replay)
        choice = choose("Auto", None, odds)
        holds_s = steady_s(estimate.beta_s, left_s, job.total_s)
        return Decision(choice.mode == "Full", choice.interval_s, holds_s, self._replays, self._parity)

    def quiet(self, seconds: float) -> None:
        """Lower the estimate of the rate."""
        self._estimate = after_quiet(self._estimate, seconds)

    def failed(self, shards: int) -> None:
        """Raise the estimate of the rate."""
        self._estimate = after_failure(self._estimate, shards)


def none(job: Job) -> Strategy:  # noqa: ARG001 -- the signature of all strategies
    """No saves: each failure restarts the job."""
    return OpenLoop(Decision(full=True, interval_s=math.inf))


def full(job: Job) -> Strategy:
    """Full recovery at its best interval."""
    return OpenLoop(Decision(full=True, interval_s=_full_interval(job)))


def partial_naive(job: Job) -> Strategy:
    """Partial recovery with full recovery's interval: each loss is charged."""
    return OpenLoop(Decision(full=False, interval_s=_full_interval(job)))


def cpr(job: Job) -> Strategy:
    """CPR: the interval with the budget as its expected loss, for one lost shard per failure, without checks."""
    interval = equations.partial_interval(job.limit, job.assumed_mtbf_s, job.shards, commit_s=job.costs.commit_s)
    return OpenLoop(Decision(full=False, interval_s=_no_shorter(interval, job)))


def replay(job: Job) -> Strategy:
    """The operator's closed loop, with trainers that repeat the pushes of lost shards."""
    return ClosedLoop(job, replays=True)


def parity(job: Job) -> Strategy:
    """The closed loop with parity among shards, without a log: updates after the last flush are lost and charged."""
    return ClosedLoop(job, parity=True)


def replay_parity(job: Job) -> Strategy:
    """The operator's closed loop with both: `recovery.redundancy`."""
    return ClosedLoop(job, replays=True, parity=True)


#: Makers of strategies by name, in the order of a table. Each job has its own instance.
STRATEGIES: Mapping[str, Callable[[Job], Strategy]] = {
    "none": none,
    "full": full,
    "partial_naive": partial_naive,
    "cpr": cpr,
    "cpr_closed_loop": ClosedLoop,
    "replay": replay,
    "parity": parity,
    "replay_parity": replay_parity,
}


def _full_interval(job: Job) -> float:
    return _no_shorter(equations.full_interval(job.costs.save_stall_s, job.assumed_mtbf_s), job)


def _no_shorter(interval_s: float, job: Job) -> float:
    """Limit an interval, so that no save begins before the last one is committed."""
    return max(interval_s, job.costs.commit_s, SHORTEST_S)
