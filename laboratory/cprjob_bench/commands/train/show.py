"""The result of the bench, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from cprjob_bench.commands.result import Result, table
from cprjob_bench.commands.train.windows import Summary, Window, summarise

SINGLE = "single"
_MIB = 2**20
_TITLES = ("contender", "samples/s", "of single", "step p50, ms", "p99, ms", "resident, MiB")


def summaries(windows: Mapping[str, Sequence[Window]]) -> dict[str, Summary]:
    """The summary of each contender's windows."""
    return {name: summarise(found, windows[SINGLE]) for name, found in windows.items()}


def result(setting: Mapping[str, Any], windows: Mapping[str, Sequence[Window]]) -> Result:
    """The setting, the medians, and every window; a line for each contender, then how the time of a step is spent."""
    found = summaries(windows)
    return Result(_document(setting, windows, found), _lines(found))


def _document(
    setting: Mapping[str, Any], windows: Mapping[str, Sequence[Window]], found: Mapping[str, Summary]
) -> dict[str, Any]:
    return {
        **setting,
        "contenders": {name: _figures(summary) for name, summary in found.items()},
        "ratio_to_single": {name: summary.ratio for name, summary in found.items() if name != SINGLE},
        "windows": {name: [asdict(window) for window in each] for name, each in windows.items()},
    }


def _lines(found: Mapping[str, Summary]) -> Iterator[str | Table]:
    shown = table(*_TITLES)
    for name, summary in found.items():
        figures = (summary.p50_ms, summary.p99_ms, summary.rss_bytes / _MIB)
        shown.add_row(
            name, f"{summary.samples_per_s:,.0f}", f"{summary.ratio:.3f}", *(f"{each:,.1f}" for each in figures)
        )
    yield shown
    for name, summary in found.items():
        for role, stages in summary.stages_ms.items():
            yield f"{name}, ms per step of a {role}: {_listed(stages)}"
        yield f"{name}, processor ms per step: {_listed(summary.cpu_ms)}"


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
