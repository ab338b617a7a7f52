"""Many simulated jobs: their mean and maximum costs, and the frequency of exceeded budgets, as JSON and plots."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from cpr_operator.policy.equations import pls_of_failure
from cpr_operator.policy.plan import ExpectedTime
from cprjob_bench.simulation.engine import Outcome, Strategy, run
from cprjob_bench.simulation.recovery_strategies import STRATEGIES
from cprjob_bench.simulation.simulated_job import Failures, Job

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: A job is over budget if it spent more than rounding explains.
_ROUNDING = 1e-9
#: The distance between the seeds of two studies, greater than the runs of any study.
_SEEDS_APART = 1_000_003
#: Strategies with more overhead are left out of a plot, because their bars would hide the others.
_TOO_MUCH = 1.0


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean, median, 95th percentile and maximum."""

    mean: float
    p50: float
    p95: float
    max: float


@dataclass(frozen=True, slots=True)
class Summary:
    """The costs of one strategy, over all runs.

    `overhead` is a portion of the useful training time, as are its parts `save` (flushes to parity included), `load`,
    `lost` and `reschedule` (means); None if a run did not finish. `pls` is the portion of lost samples. `time` is the
    same time as goodput and its parts (means); None as well.
    """

    overhead: Spread | None
    pls: Spread
    save: float
    load: float
    lost: float
    reschedule: float
    rollbacks: float
    over_budget: float
    time: ExpectedTime | None


def study(job: Job, failures: Failures, runs: int, seed: int, asynchronous: Job | None = None) -> dict[str, Summary]:
    """Simulate each strategy over the same failures; with `asynchronous`, those with saves once more, as NAME_async."""
    summaries = {name: simulate(job, make, failures, runs, seed) for name, make in STRATEGIES.items()}
    if asynchronous is not None:
        saving: Mapping[str, Callable[[Job], Strategy]] = {k: v for k, v in STRATEGIES.items() if k != "none"}
        for name, make in saving.items():
            summaries[f"{name}_async"] = simulate(asynchronous, make, failures, runs, seed)
    return summaries


def simulate(job: Job, make: Callable[[Job], Strategy], failures: Failures, runs: int, seed: int) -> Summary:
    """Simulate one strategy over `runs` jobs. Run i of a seed has the same failures with all strategies."""
    which = random.Random(seed)
    outcomes = [
        run(job, make(job), failures(job, random.Random(seed * _SEEDS_APART + index)), which) for index in range(runs)
    ]
    return _summary(job, outcomes)


def as_json(summaries: Mapping[str, Summary]) -> dict[str, dict[str, Any]]:
    """Return the metrics by strategy; all are portions, except `rollbacks_mean`. An infinite overhead is null."""
    return {name: _summary_as_json(summary) for name, summary in summaries.items()}


def plot_study(path: Path, summaries: Mapping[str, Summary], limit: float, title: str) -> None:
    """Plot the costs of each strategy, and the budget that it spends.

    `limit` is the budget, a portion of all samples.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 -- slow to load, and only plots need it

    shown = {n: s for n, s in summaries.items() if s.overhead is not None and s.overhead.mean < _TOO_MUCH}
    figure = Figure(figsize=(11, 0.7 + 0.42 * len(shown)), layout="constrained")
    figure.suptitle(title)
    costs, losses = figure.subplots(1, 2, sharey=True)
    _bars(costs, shown)
    _spent(losses, shown, limit)
    figure.savefig(path, dpi=150)


def plot_scale(path: Path, sizes: Mapping[int, Mapping[str, Summary]], title: str) -> None:
    """Plot overhead by the number of shards, on log axes; a line stops before the first size without an end."""
    from matplotlib.figure import Figure  # noqa: PLC0415 -- as above

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for name in next(iter(sizes.values())):
        points = [(n, s[name].overhead) for n, s in sizes.items()]
        known = [(n, overhead.mean) for n, overhead in points if overhead is not None]
        style = "--" if name.endswith("_async") else "-"
        colour = f"C{list(next(iter(sizes.values()))).index(name.removesuffix('_async'))}"
        axes.plot([n for n, _ in known], [mean for _, mean in known], style, color=colour, marker=".", label=name)
    axes.set(xscale="log", yscale="log", title=title, xlabel="shards", ylabel="overhead, portion of training time")
    axes.set_xticks(list(sizes), [str(n) for n in sizes])
    axes.minorticks_off()
    axes.grid(visible=True, alpha=0.3)
    axes.legend(loc="upper left", frameon=False, fontsize="small")
    figure.savefig(path, dpi=150)


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
        time=_mean_time(job, outcomes, saves) if all(o.finished for o in outcomes) else None,
    )


def _mean_time(job: Job, outcomes: list[Outcome], saves: list[float]) -> ExpectedTime:
    """Return the mean goodput over jobs, and the mean parts. Pushing again is part of a recovery."""
    total, recover_s = job.total_s, job.costs.load_s + job.costs.reschedule_s
    times = [
        ExpectedTime.of(spent, (o.recoveries * recover_s + o.replayed_s) / total, (o.lost_s - o.replayed_s) / total)
        for spent, o in zip(saves, outcomes, strict=True)
    ]
    return ExpectedTime(*(fmean(parts) for parts in zip(*map(astuple, times), strict=True)))


def _spread(values: Iterable[float]) -> Spread:
    """Return percentiles by nearest rank."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return Spread(fmean(ordered), ordered[round(0.5 * last)], ordered[round(0.95 * last)], ordered[last])


def _summary_as_json(summary: Summary) -> dict[str, Any]:
    overhead, pls = summary.overhead, summary.pls
    return {
        "overhead_mean": overhead.mean if overhead else None,
        "overhead_p95": overhead.p95 if overhead else None,
        "pls_mean": pls.mean,
        "pls_max": pls.max,
        "over_budget_share": summary.over_budget,
        "rollbacks_mean": summary.rollbacks,
        "save": summary.save,
        "load": summary.load,
        "lost": summary.lost,
        "reschedule": summary.reschedule,
        "goodput": summary.time and asdict(summary.time),
    }


def _bars(axes: Axes, shown: Mapping[str, Summary]) -> None:
    ends = [0.0] * len(shown)
    for part in ("save", "lost", "load", "reschedule"):
        widths = [100 * getattr(summary, part) for summary in shown.values()]
        axes.barh(list(shown), widths, left=ends, label=part)
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    axes.invert_yaxis()
    axes.set(xlabel="overhead, % of training time")
    axes.legend(loc="lower right", frameon=False, fontsize="small")


def _spent(axes: Axes, shown: Mapping[str, Summary], limit: float) -> None:
    for mark, label in (("mean", "mean"), ("p95", "95 % of runs"), ("max", "worst run")):
        values = [getattr(summary.pls, mark) for summary in shown.values()]
        axes.plot(values, list(shown), {"mean": "o", "p95": "|", "max": "x"}[mark], label=label)
    axes.axvline(limit, color="black", linewidth=0.8, label="budget")
    axes.set(xlabel="portion of lost samples (PLS)")
    axes.legend(loc="upper right", frameon=False, fontsize="small")
