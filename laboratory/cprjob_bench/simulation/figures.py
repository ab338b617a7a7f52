"""The figures of a study, for programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cprjob_bench.simulation.study import Summary


def as_json(summaries: Mapping[str, Summary]) -> dict[str, dict[str, Any]]:
    """By strategy; all are portions, but `rollbacks_mean`. An overhead that has no end is null."""
    return {name: _figures(summary) for name, summary in summaries.items()}


def _figures(summary: Summary) -> dict[str, float | None]:
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
    }
