"""The control law: the recovery mode and save interval with the least overhead within the budget. Plain floats.

This rule is the cheapest of those tried in simulation (docs/policy.md).

Let x = budget / m be the age at which one failure of m shards uses up the remaining budget, F = left / T_fail the
expected number of failures, T = T_save, and c = O_commit.

1. The expected losses plus one standard deviation fit: F*(T/2 + c) + sqrt(F)*(T/sqrt(3) + c) <= x.
2. The next failure always fits: T + c <= x.
3. Overheads within TIE of the minimum count as equal, because the budget is a limit, not a target. T is shortened
   until saves cost TIE more. Full recovery, which loses nothing, is chosen if it is within TIE.
4. T is at least T_save,full, because saving more often costs more than the rollbacks that it avoids.
5. The remaining cuts are spread evenly, so that none falls just before the end.

With replay nothing is lost, and rules 1 to 4 have no object. A failure stops training until everything since the last
save is pushed again, which takes rho per second of it. The interval is therefore sqrt(2 * O_save * T_fail / rho).

A loss that exceeds the budget is rolled back in any case, so the law affects the cost of the guarantee alone.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from cpr_operator.policy.equations import expected_age, full_interval, replay_interval, rolled_back

Mode = Literal["Auto", "Partial", "Full"]
#: The bound of an interval: the user, the expected failures, the next one, the tie, full recovery, the commit, or the
#: duration of replay.
Bound = Literal["fixed", "failures", "failure", "tie", "full", "commit", "replay"]

#: Overheads that differ by at most this fraction of the training time count as equal.
TIE = 1e-3
#: The minimum interval. Shorter ones would mean saving all the time.
SHORTEST_S = 1.0
#: Numbers of intervals that differ by less than this count as equal.
_ROUNDING = 1e-9


class Odds(NamedTuple):
    """The inputs of the law.

    budget_s: shard-seconds of training that may still be lost.
    left_s: training left since the last cut; more than 0.
    mtbf_s: T_fail.
    lost: m, the shards lost per failure.
    save_s: O_save.
    commit_s: the time from a cut to its commit, during which training continues.
    replay: rho, the seconds that it takes to push one second of training again; more than 0. None: there is no replay.
    """

    budget_s: float
    left_s: float
    mtbf_s: float
    lost: float
    save_s: float
    commit_s: float
    replay: float | None = None


class Choice(NamedTuple):
    """A mode and an interval with its bound, and the costs of partial and full recovery.

    The costs of saves and of repeated training are portions of the training left. O_load + O_res,
    which both modes have in common, is left out.
    """

    mode: Literal["Partial", "Full"]
    interval_s: float
    bound: Bound
    partial_cost: float
    full_cost: float


def choose(mode: Mode, fixed_s: float | None, odds: Odds) -> Choice:
    """Choose the mode and the interval.

    Auto means full recovery if the budget is used up, or by rule 3. A fixed interval is always used; Auto then means
    partial recovery while any budget is left.
    """
    if odds.replay is not None:
        return _replaying(mode, fixed_s, odds, odds.replay)
    shortest = max(odds.commit_s, SHORTEST_S)
    full = max(full_interval(odds.save_s, odds.mtbf_s), shortest)
    partial, bound, paid = _partial(odds, full)
    if partial == shortest and odds.budget_s > 0:
        bound = "commit"
    partial, full = _evenly(partial, odds.left_s, shortest), _evenly(full, odds.left_s, shortest)
    if fixed_s is not None:
        partial, full, bound = fixed_s, fixed_s, "fixed"
    partial_cost, full_cost = _cost(odds, partial, odds.budget_s / odds.lost), _cost(odds, full, 0.0)
    tied = fixed_s is None and full_cost <= partial_cost - paid + TIE
    if mode == "Full" or (mode == "Auto" and (odds.budget_s <= 0 or tied)):
        return Choice("Full", full, "full", partial_cost, full_cost)
    return Choice("Partial", partial, bound, partial_cost, full_cost)


def _replaying(mode: Mode, fixed_s: float | None, odds: Odds, replay: float) -> Choice:
    """Return the choice with replay: with nothing to roll back, full recovery costs the same."""
    shortest = max(odds.commit_s, SHORTEST_S)
    best = replay_interval(odds.save_s, odds.mtbf_s, replay)
    bound: Bound = "fixed" if fixed_s is not None else "replay" if best > shortest else "commit"
    interval = _evenly(max(best, shortest), odds.left_s, shortest) if fixed_s is None else fixed_s
    again = replay * expected_age(min(interval, odds.left_s), odds.commit_s) / odds.mtbf_s
    cost = cost_of_saves(odds, interval) + again
    return Choice("Full" if mode == "Full" else "Partial", interval, bound, cost, cost)


def _partial(odds: Odds, full_s: float) -> tuple[float, Bound, float]:
    """Apply rules 1 to 4. Return the interval, its bound, and the increase of the cost of saves by rule 3."""
    commit, save, failures = odds.commit_s, odds.save_s, odds.left_s / odds.mtbf_s
    affordable, deviations = odds.budget_s / odds.lost, math.sqrt(failures)
    by_failures = (affordable - (failures + deviations) * commit) / (failures / 2 + deviations / math.sqrt(3))
    by_failure = affordable - commit
    longest = min(by_failures, by_failure)
    if longest <= full_s:
        return full_s, "full", 0.0
    interval = max(longest * save / (save + TIE * longest), full_s)
    bound: Bound = "failures" if by_failures < by_failure else "failure"
    return interval, "tie" if save < TIE * longest else bound, save / interval - save / longest


def _evenly(interval_s: float, left_s: float, shortest_s: float) -> float:
    """Return the longest interval up to `interval_s` that divides `left_s`. Unchanged if no cut falls into `left_s`."""
    if interval_s >= left_s:
        return interval_s
    cuts = math.ceil(left_s / interval_s - _ROUNDING)
    return max(left_s / cuts, shortest_s)


def _cost(odds: Odds, interval_s: float, affordable_s: float) -> float:
    """Return the cost of saves and repeated training, as a portion of the training left."""
    failures = odds.left_s / odds.mtbf_s
    again = rolled_back(failures, min(interval_s, odds.left_s), odds.commit_s, affordable_s)
    return cost_of_saves(odds, interval_s) + again / odds.left_s


def cost_of_saves(odds: Odds, interval_s: float) -> float:
    """Return the cost of saves, as a portion of the training left. The final save is free."""
    cuts = max(math.ceil(odds.left_s / interval_s - _ROUNDING) - 1, 0)
    return cuts * odds.save_s / odds.left_s
