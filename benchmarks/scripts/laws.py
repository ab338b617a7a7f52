"""The costs of other laws than the policy's: .venv/bin/python benchmarks/scripts/laws.py [--runs N] [--dynamic].

Each law chooses the interval over the same simulated failures, and a loss beyond the budget rolls back. `--dynamic`
adds the interval that dynamic programming finds over a grid of (training left, budget left), in about a minute. It
needs the true rate, so the policy's law is shown with and without it.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from cpr_operator.policy.equations import full_interval
from cpr_operator.policy.law import Odds, choose
from cprjob_bench.simulation.engine import Decision
from cprjob_bench.simulation.recovery_strategies import ClosedLoop
from cprjob_bench.simulation.simulated_job import PAPER, PRODUCTION, Job, exponential
from cprjob_bench.simulation.study import simulate

Law = Callable[[Odds], float]
Grid = NDArray[np.float64]


def expectation(part: float) -> Law:
    """Expected losses are `part` of the budget, without a limit for a single failure."""
    return lambda odds: part * 2 * odds.budget_s * odds.mtbf_s / (odds.left_s * odds.lost)


def capped(part: float) -> Law:
    """The same, and one failure always fits."""
    return lambda odds: min(expectation(part)(odds), odds.budget_s / odds.lost)


def spread(deviations: float) -> Law:
    """Expected losses plus `deviations` standard deviations fit, and one failure always fits."""

    def interval(odds: Odds) -> float:
        failures, affordable = odds.left_s / odds.mtbf_s, odds.budget_s / odds.lost
        return min(affordable / (failures / 2 + deviations * math.sqrt(failures / 3)), affordable)

    return interval


def paying(law: Law) -> Law:
    """The same, with at most as many saves as full recovery."""
    return lambda odds: max(law(odds), full_interval(odds.save_s, odds.mtbf_s))


def chosen(odds: Odds) -> float:
    """The policy's law."""
    return choose("Partial", None, odds).interval_s


class OtherLaw(ClosedLoop):
    """The closed loop with another law, with the true rate or an estimate."""

    def __init__(self, job: Job, law: Law, *, true_rate: bool) -> None:
        super().__init__(job)
        self._law, self._true_rate = law, true_rate

    def decide(self, budget_s: float, left_s: float) -> Decision:
        """Decide as the operator, with this law."""
        job = self._job
        mtbf_s = job.mtbf_s if self._true_rate else self._estimate.mtbf_s
        odds = Odds(budget_s, left_s, mtbf_s, job.lost, job.costs.save_stall_s, job.costs.commit_s)
        return super().decide(budget_s, left_s)._replace(full=False, interval_s=self._law(odds))


def dynamic(job: Job, steps: int = 160) -> Law:
    """Return the law of least expected time by training left and budget, for synchronous saves and the true rate.

    It is approximate: at most two failures between two cuts, and after the first a save at once or as planned.
    """
    best = _solve(job, job.total_s / steps, job.budget_s / steps, steps)

    def interval(odds: Odds) -> float:
        left = min(max(round(steps * odds.left_s / job.total_s), 1), steps)
        found = float(best[left, min(int(steps * odds.budget_s / job.budget_s), steps)])
        return odds.left_s if found >= odds.left_s - job.total_s / steps else found

    return interval


def _solve(job: Job, step_s: float, budget_step_s: float, steps: int) -> Grid:
    """Return the best interval for each [training left, budget left], from the end of the job backwards."""
    budget: Grid = np.arange(steps + 1) * np.float64(budget_step_s)
    value, best = np.zeros((steps + 1, steps + 1)), np.zeros((steps + 1, steps + 1))
    for left in range(1, steps + 1):
        value[left] = np.inf
        for length in (*range(1, min(left, 40)), *range(40, left, 4), left):
            cost = _cost(job, budget, value[left - length : left + 1][::-1], step_s)
            better = cost < value[left]
            value[left][better], best[left][better] = cost[better], length * step_s
    return best


def _cost(job: Job, budget: Grid, later: Grid, step_s: float) -> Grid:
    """Return the expected time lost from here, for each budget, with the next cut at the last step of `later`.

    later[k] is the time lost from k steps on, for each budget; later[0] is unknown. A rollback returns to this state,
    so the expectation without a rollback is divided by the probability of none.
    """
    rate, lost, share, recover = 1 / job.mtbf_s, job.lost, job.lost / job.shards, job.costs.recover_s
    length, save = len(later) - 1, job.costs.save_stall_s
    interval, end = length * step_s, np.where(later[-1].any(), save, 0.0)  # no save at the end of the job
    total, again = math.exp(-rate * interval) * (end + later[-1]), np.zeros_like(budget)
    for step in range(length):
        age = (step + 0.5) * step_s
        weight = math.exp(-rate * step * step_s) - math.exp(-rate * (step + 1) * step_s)
        after, second = np.maximum(budget - lost * age, 0.0), (interval + age) / 2
        charge, quiet = lost * (second - share * age), math.exp(-rate * (interval - age))
        paid = recover + end + np.interp(np.maximum(after - charge, 0.0), budget, later[-1])
        twice = np.where(charge <= after, paid, second + recover)
        planned = quiet * (end + np.interp(after, budget, later[-1])) + (1 - quiet) * twice
        back = (1 - quiet) * (charge > after)
        at_once = save + np.interp(after, budget, later[step + 1])
        sooner = at_once < planned + back * later[1]
        fits = lost * age <= budget
        total = total + weight * (recover + np.where(fits, np.where(sooner, at_once, planned), age))
        again += weight * np.where(fits, np.where(sooner, 0.0, back), 1.0)
    found: Grid = total / (1 - again)
    return found


LEARNING: Mapping[str, Law] = {
    "the policy's law": chosen,
    "mean + 1 deviation": paying(spread(1.0)),
    "mean + 0.5 deviations": paying(spread(0.5)),
    "mean + 1.5 deviations": paying(spread(1.5)),
    "0.4 of the mean, capped": paying(capped(0.4)),
    "0.7 of the mean, capped": paying(capped(0.7)),
    "the mean, capped": paying(capped(1.0)),
    "the mean": paying(expectation(1.0)),
}


def main() -> None:
    """Print a table for each preset."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--dynamic", action="store_true")
    options = parser.parse_args()
    for name, job in {"paper": PAPER, "production": PRODUCTION}.items():
        laws = [(title, law, False) for title, law in LEARNING.items()]
        laws.append(("the policy's law, true rate", chosen, True))
        if options.dynamic:
            laws.append(("dynamic programming, true rate", dynamic(job), True))
        table = Table("law", "overhead %", "p95", "save", "lost", "PLS", "rollbacks", title=name)
        for title, law, true_rate in laws:
            found = simulate(job, partial(OtherLaw, law=law, true_rate=true_rate), exponential, options.runs, seed=0)
            overhead = found.overhead
            times = (overhead.mean, overhead.p95, found.save, found.lost) if overhead else ()
            table.add_row(title, *(f"{100 * t:.2f}" for t in times), f"{found.pls.mean:.4f}", f"{found.rollbacks:.3f}")
        Console(width=100).print(table)


if __name__ == "__main__":
    main()
