"""What other laws would cost: .venv/bin/python benchmarks/scripts/laws.py [--runs N] [--dynamic].

Each rival chooses the interval in the place of the policy's law, over the same simulated failures and with the same
promise: a loss that does not fit rolls back. `--dynamic` adds the interval that dynamic programming finds over a grid
of (training left, budget left), which takes a minute; it has to be told the rate, so the law is shown both ways.
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
    """Expected losses use up `part` of the budget; no failure is looked at alone."""
    return lambda odds: part * 2 * odds.budget_s * odds.mtbf_s / (odds.left_s * odds.lost)


def capped(part: float) -> Law:
    """The same, and one failure always fits."""
    return lambda odds: min(expectation(part)(odds), odds.budget_s / odds.lost)


def spread(deviations: float) -> Law:
    """Expected losses and so many standard deviations fit, and one failure always does; not spread evenly, no tie."""

    def interval(odds: Odds) -> float:
        failures, affordable = odds.left_s / odds.mtbf_s, odds.budget_s / odds.lost
        return min(affordable / (failures / 2 + deviations * math.sqrt(failures / 3)), affordable)

    return interval


def paying(law: Law) -> Law:
    """The same, but never more often than full recovery saves."""
    return lambda odds: max(law(odds), full_interval(odds.save_s, odds.mtbf_s))


def chosen(odds: Odds) -> float:
    """The policy's law."""
    return choose("Partial", None, odds).interval_s


class Rival(ClosedLoop):
    """The closed loop with another law; it `knows` the rate, or learns it."""

    def __init__(self, job: Job, law: Law, *, knows: bool) -> None:
        super().__init__(job)
        self._law, self._knows = law, knows

    def decide(self, budget_s: float, left_s: float) -> Decision:
        """As the operator would, with this law."""
        job = self._job
        mtbf_s = job.mtbf_s if self._knows else self._belief.mtbf_s
        odds = Odds(budget_s, left_s, mtbf_s, job.lost, job.costs.save_stall_s, job.costs.commit_s)
        return super().decide(budget_s, left_s)._replace(full=False, interval_s=self._law(odds))


def dynamic(job: Job, steps: int = 160) -> Law:
    """The interval of least expected time by training left and budget, for synchronous saves and the true rate.

    Approximate: at most two failures fall between two cuts, and after the first the job saves at once or as planned.
    """
    best = _solve(job, job.total_s / steps, job.budget_s / steps, steps)

    def interval(odds: Odds) -> float:
        left = min(max(round(steps * odds.left_s / job.total_s), 1), steps)
        found = float(best[left, min(int(steps * odds.budget_s / job.budget_s), steps)])
        return odds.left_s if found >= odds.left_s - job.total_s / steps else found

    return interval


def _solve(job: Job, step_s: float, budget_step_s: float, steps: int) -> Grid:
    """The best interval for each [training left, budget left], from the end of the job backwards."""
    budget: Grid = np.arange(steps + 1) * np.float64(budget_step_s)
    value, best = np.zeros((steps + 1, steps + 1)), np.zeros((steps + 1, steps + 1))
    for left in range(1, steps + 1):
        value[left] = np.inf
        for length in (*range(1, min(left, 40)), *range(40, left, 4), left):
            cost = _cost(job, budget, value[left - length : left + 1][::-1], step_s)
            better = cost < value[left]
            value[left][better], best[left][better] = cost[better], length * step_s
    return best


def _cost(job: Job, budget: Grid, ahead: Grid, step_s: float) -> Grid:
    """Expected time lost from here on, for each budget, if the next cut comes where `ahead`, by steps from here, ends.

    ahead[k] is the time lost from k steps on, for each budget; ahead[0] is not known yet. A rollback comes back here,
    so what is expected without one is divided by its probability.
    """
    rate, lost, share, recover = 1 / job.mtbf_s, job.lost, job.lost / job.shards, job.costs.recover_s
    length, save = len(ahead) - 1, job.costs.save_stall_s
    interval, end = length * step_s, np.where(ahead[-1].any(), save, 0.0)  # no save where the job ends
    total, again = math.exp(-rate * interval) * (end + ahead[-1]), np.zeros_like(budget)
    for step in range(length):
        age = (step + 0.5) * step_s
        weight = math.exp(-rate * step * step_s) - math.exp(-rate * (step + 1) * step_s)
        after, second = np.maximum(budget - lost * age, 0.0), (interval + age) / 2
        charge, quiet = lost * (second - share * age), math.exp(-rate * (interval - age))
        paid = recover + end + np.interp(np.maximum(after - charge, 0.0), budget, ahead[-1])
        twice = np.where(charge <= after, paid, second + recover)
        planned = quiet * (end + np.interp(after, budget, ahead[-1])) + (1 - quiet) * twice
        back = (1 - quiet) * (charge > after)
        at_once = save + np.interp(after, budget, ahead[step + 1])
        hurry = at_once < planned + back * ahead[1]
        fits = lost * age <= budget
        total = total + weight * (recover + np.where(fits, np.where(hurry, at_once, planned), age))
        again += weight * np.where(fits, np.where(hurry, 0.0, back), 1.0)
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
        rivals = [(title, law, False) for title, law in LEARNING.items()]
        rivals.append(("the policy's law, told the rate", chosen, True))
        if options.dynamic:
            rivals.append(("dynamic programming, told the rate", dynamic(job), True))
        table = Table("law", "overhead %", "p95", "save", "lost", "PLS", "rollbacks", title=name)
        for title, law, knows in rivals:
            found = simulate(job, partial(Rival, law=law, knows=knows), exponential, options.runs, seed=0)
            overhead = found.overhead
            times = (overhead.mean, overhead.p95, found.save, found.lost) if overhead else ()
            table.add_row(title, *(f"{100 * t:.2f}" for t in times), f"{found.pls.mean:.4f}", f"{found.rollbacks:.3f}")
        Console(width=100).print(table)


if __name__ == "__main__":
    main()
