"""Studies as pictures. The caller checks that the file can be written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cprjob_bench.simulation.study import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: A job that takes longer to save and recover than to train says nothing to the others: its bar would hide them.
_TOO_MUCH = 1.0


def plot_study(path: Path, summaries: Mapping[str, Summary], limit: float, title: str) -> None:
    """What each strategy costs, and what it spends of the budget; strategies that cost more than the job are left out.

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
    """Overhead by the number of shards, both on log axes; a line ends where a strategy no longer does."""
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
