"""The law: which recovery, and how often to save, for the least time within the budget. Plain floats in and out.

Of all rules tried in simulation (docs/policy.md) this is the cheapest; where the failure rate is known it costs what
dynamic programming finds. It goes beyond CPR, whose interval spends all of the budget on average. With x = budget / m,
the age at which one failure of m shards takes all that is left, F = left / T_fail failures to come, T = T_save and
c = O_commit:

1. The losses to come fit, and one standard deviation more: F*(T/2 + c) + sqrt(F)*(T/sqrt(3) + c) <= x.
2. The next failure always fits: T + c <= x.
3. Overheads within TIE of the least are the same, and the budget is a limit, not a target: T is shortened until saves
   cost TIE more, and full recovery, which loses nothing, is taken if it is within TIE.
4. Saving more often than full recovery would, T_save,full, costs more than the rollbacks that it avoids.
5. The cuts that are left are spread evenly: none falls just before the end.

A loss that does not fit after all is rolled back, whatever the law says (`cpr_operator.recovery`): the law decides
what the promise costs, not whether it is kept.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from cpr_operator.policy.equations import full_interval, rolled_back

Mode = Literal["Auto", "Partial", "Full"]
#: What an interval was bounded by: the user, the failures to come, the next one, the tie, full recovery, the commit.
Bound = Literal["fixed", "failures", "failure", "tie", "full", "commit"]

#: Overheads that differ by no more than this part of the training time are the same: 0.1 percentage points.
TIE = 1e-3
#: Shorter intervals are saving all the time.
SHORTEST_S = 1.0
#: Numbers of intervals that differ by less than this are the same.
_ROUNDING = 1e-9


class Odds(NamedTuple):
    """What the law rests on.

    `budget_s`: shard-seconds of training that may still be lost; `left_s`: training left since the last cut, more
    than 0; `mtbf_s`: T_fail; `lost`: m, the shards that one failure takes; `save_s`: O_save; `commit_s`: from a cut to
    its commit, during which training goes on.
    """

    budget_s: float
    left_s: float
    mtbf_s: float
    lost: float
    save_s: float
    commit_s: float


class Choice(NamedTuple):
    """A mode and an interval, what bounded it, and what partial and full recovery would cost.

    Costs are portions of the training left, for saves and for training done again; what a recovery costs in either
    mode, O_load + O_res, is left out.
    """

    mode: Literal["Partial", "Full"]
    interval_s: float
    bound: Bound
    partial_cost: float
    full_cost: float


def choose(mode: Mode, fixed_s: float | None, odds: Odds) -> Choice:
    """The mode and the interval.

    Auto is full recovery where nothing is left of the budget, or by rule 3. A fixed interval is obeyed; Auto is then
    partial as long as there is a budget.
    """
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


def _partial(odds: Odds, full_s: float) -> tuple[float, Bound, float]:
    """Rules 1 to 4: the interval, what bounded it, and by how much rule 3 has raised the cost of saves."""
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
    """The longest interval, up to `interval_s`, that divides what is left; itself, if no cut falls into that."""
    if interval_s >= left_s:
        return interval_s
    cuts = math.ceil(left_s / interval_s - _ROUNDING)
    return max(left_s / cuts, shortest_s)


def _cost(odds: Odds, interval_s: float, affordable_s: float) -> float:
    """Expected saves and training done again, as a portion of the training left; the last step's save is no cost."""
    cuts = max(math.ceil(odds.left_s / interval_s - _ROUNDING) - 1, 0)
    failures = odds.left_s / odds.mtbf_s
    again = rolled_back(failures, min(interval_s, odds.left_s), odds.commit_s, affordable_s)
    return (cuts * odds.save_s + again) / odds.left_s
