"""The result of the bench, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from cprjob_bench.commands.recovery.outage import percentile
from cprjob_bench.commands.result import Result, table

#: Seconds of every run, by tier and by MiB of a shard.
Found = Mapping[str, Mapping[int, Sequence[float]]]
_TITLES = ("tier", "shard, MiB", "p50, s", "p99, s", "runs")


def result(found: Found) -> Result:
    """By tier and size the percentiles, and the number of runs."""
    return Result(_document(found), _lines(found))


def _document(found: Found) -> dict[str, Any]:
    return {
        tier: {
            str(size): {"p50_s": percentile(runs, 50), "p99_s": percentile(runs, 99), "runs": len(runs)}
            for size, runs in sizes.items()
        }
        for tier, sizes in found.items()
    }


def _lines(found: Found) -> Iterator[Table]:
    shown = table(*_TITLES)
    for tier, sizes in found.items():
        for size, runs in sizes.items():
            figures = (f"{percentile(runs, place):.2f}" for place in (50, 99))
            shown.add_row(tier, f"{size:,}", *figures, str(len(runs)))
    yield shown
