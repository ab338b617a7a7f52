"""Many simulated jobs, and what they cost on average, at worst, and how often they overspend."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from cpr_operator.policy.equations import pls_of_failure
from cprjob_bench.simulation.engine import Outcome, Strategy, run
from cprjob_bench.simulation.failures import Failures
from cprjob_bench.simulation.job import Job
from cprjob_bench.simulation.strategies import STRATEGIES

#: A job is over budget if it spent more than rounding explains.
_ROUNDING = 1e-9
#: Seeds of two studies are further apart than any study has runs.
_SEEDS_APART = 1_000_003


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean, median, 95th percentile and maximum."""

    mean: float
    p50: float
    p95: float
    max: float


@dataclass(frozen=True, slots=True)
class Summary:
    """What one strategy costs, over all runs.

    `overhead` is a portion of the useful training time, as are its parts `save`, `load`, `lost` and `reschedule`
    (means), of which `save` has flushes to parity, too; None if some run trained so much again that it never ended.
    `pls` is the portion of lost samples.
    """

    overhead: Spread | None
    pls: Spread
    save: float
    load: float
    lost: float
    reschedule: float
    rollbacks: float
    over_budget: float


def study(job: Job, failures: Failures, runs: int, seed: int, asynchronous: Job | None = None) -> dict[str, Summary]:
    """Every strategy, over the same failures; with `asynchronous`, each that saves once more, as NAME_async."""
    summaries = {name: simulate(job, make, failures, runs, seed) for name, make in STRATEGIES.items()}
    if asynchronous is not None:
        saving: Mapping[str, Callable[[Job], Strategy]] = {k: v for k, v in STRATEGIES.items() if k != "none"}
        for name, make in saving.items():
            summaries[f"{name}_async"] = simulate(asynchronous, make, failures, runs, seed)
    return summaries


def simulate(job: Job, make: Callable[[Job], Strategy], failures: Failures, runs: int, seed: int) -> Summary:
    """One strategy over `runs` jobs. Run i of a seed has the same failures whatever the strategy."""
    which = random.Random(seed)
    outcomes = [
        run(job, make(job), failures(job, random.Random(seed * _SEEDS_APART + index)), which) for index in range(runs)
    ]
    return _summary(job, outcomes)


def _summary(job: Job, outcomes: list[Outcome]) -> Summary:
    total, costs = job.total_s, job.costs
    save, load, reschedule = (each / total for each in (costs.save_stall_s, costs.load_s, costs.reschedule_s))
    saves = [o.saves * save + o.flushing_s * job.parity_cost / total for o in outcomes]
    overheads = [
        spent + o.recoveries * (load + reschedule) + o.lost_s / total for spent, o in zip(saves, outcomes, strict=True)
    ]
    recoveries = fmean(o.recoveries for o in outcomes)
    return Summary(
        overhead=_spread(overheads) if all(o.finished for o in outcomes) else None,
        pls=_spread(pls_of_failure(o.spent_s, total, job.shards) for o in outcomes),
        save=fmean(saves),
        load=recoveries * load,
        lost=fmean(o.lost_s for o in outcomes) / total,
        reschedule=recoveries * reschedule,
        rollbacks=fmean(o.rollbacks for o in outcomes),
        over_budget=fmean(o.spent_s > job.budget_s * (1 + _ROUNDING) for o in outcomes),
    )


def _spread(values: Iterable[float]) -> Spread:
    """Percentiles by nearest rank."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return Spread(fmean(ordered), ordered[round(0.5 * last)], ordered[round(0.95 * last)], ordered[last])
