"""CPR's own plan, for comparison: an interval fixed for the whole job, regardless of the actual losses."""

from __future__ import annotations

from dataclasses import dataclass

from cpr_operator.policy import equations
from cpr_operator.policy.inputs import Inputs
from cpr_operator.policy.law import SHORTEST_S


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """An interval with its expected loss and overhead, as portions of all samples and of the training time."""

    interval_s: float
    expected_pls: float
    expected_overhead: float


def partial(inputs: Inputs) -> OpenLoop:
    """The interval whose expected loss is the whole budget, so that about half of all jobs exceed it."""
    odds, recover_s = inputs.odds, inputs.costs.recover_s
    longest = equations.partial_interval(inputs.limit, odds.mtbf_s, inputs.shards, odds.lost, odds.commit_s)
    interval_s = max(longest, odds.commit_s, SHORTEST_S)
    lost = equations.expected_pls(interval_s, odds.mtbf_s, inputs.shards, odds.lost, odds.commit_s)
    return OpenLoop(interval_s, lost, equations.partial_overhead(interval_s, odds.mtbf_s, odds.save_s, recover_s))


def full(inputs: Inputs) -> OpenLoop:
    """The interval with the lowest cost of full recovery."""
    odds, recover_s = inputs.odds, inputs.costs.recover_s
    interval_s = max(equations.full_interval(odds.save_s, odds.mtbf_s), odds.commit_s, SHORTEST_S)
    overhead = equations.full_overhead(interval_s, odds.mtbf_s, odds.save_s, recover_s, odds.commit_s)
    return OpenLoop(interval_s, 0.0, overhead)


def break_even(inputs: Inputs) -> float:
    """The budget above which partial recovery is cheaper, as a portion of all samples."""
    odds = inputs.odds
    return equations.break_even_pls(odds.save_s, odds.mtbf_s, inputs.shards, odds.lost)
