"""The result of the bench, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from cprjob_bench.commands.train.windows import Summary, Window, summarise

SINGLE = "single"
_MIB = 2**20
_TITLES = ("contender", "samples/s", "of single", "step p50, ms", "p99, ms", "resident, MiB")


def summaries(windows: Mapping[str, Sequence[Window]]) -> dict[str, Summary]:
    """The summary of each contender's windows."""
    return {name: summarise(found, windows[SINGLE]) for name, found in windows.items()}


def as_json(setting: Mapping[str, Any], windows: Mapping[str, Sequence[Window]]) -> dict[str, Any]:
    """Plain JSON values: the setting, the medians, and every window."""
    found = summaries(windows)
    return {
        **setting,
        "contenders": {name: _figures(summary) for name, summary in found.items()},
        "ratio_to_single": {name: summary.ratio for name, summary in found.items() if name != SINGLE},
        "windows": {name: [asdict(window) for window in each] for name, each in windows.items()},
    }


def print_results(console: Console, windows: Mapping[str, Sequence[Window]]) -> None:
    """Print a line for each contender, then how the time of a step is spent."""
    found = summaries(windows)
    table = Table(box=None, pad_edge=False)
    for place, title in enumerate(_TITLES):
        table.add_column(title, header_style="dim", justify="right" if place else "left")
    for name, summary in found.items():
        figures = (summary.p50_ms, summary.p99_ms, summary.rss_bytes / _MIB)
        table.add_row(
            name, f"{summary.samples_per_s:,.0f}", f"{summary.ratio:.3f}", *(f"{each:,.1f}" for each in figures)
        )
    console.print(table, highlight=False)
    for name, summary in found.items():
        for role, stages in summary.stages_ms.items():
            console.print(f"{name}, ms per step of a {role}: {_listed(stages)}", highlight=False, soft_wrap=True)
        console.print(f"{name}, processor ms per step: {_listed(summary.cpu_ms)}", highlight=False, soft_wrap=True)


def _figures(summary: Summary) -> dict[str, Any]:
    return {
        "samples_per_s": summary.samples_per_s,
        "step_p50_ms": summary.p50_ms,
        "step_p99_ms": summary.p99_ms,
        "rss_mib": summary.rss_bytes / _MIB,
        "stages_ms": {role: dict(stages) for role, stages in summary.stages_ms.items()},
        "cpu_ms": dict(summary.cpu_ms),
    }


def _listed(figures: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in figures.items())
