"""The result of the bench, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from cprjob_bench.commands.recovery.outage import percentile

#: Seconds of every run, by tier and by MiB of a shard.
Found = Mapping[str, Mapping[int, Sequence[float]]]
_TITLES = ("tier", "shard, MiB", "p50, s", "p99, s", "runs")


def as_json(found: Found) -> dict[str, Any]:
    """Plain JSON values: by tier and size the percentiles, and the number of runs."""
    return {
        tier: {
            str(size): {"p50_s": percentile(runs, 50), "p99_s": percentile(runs, 99), "runs": len(runs)}
            for size, runs in sizes.items()
        }
        for tier, sizes in found.items()
    }


def print_results(console: Console, found: Found) -> None:
    """Print a line for each tier and size."""
    table = Table(box=None, pad_edge=False)
    for place, title in enumerate(_TITLES):
        table.add_column(title, header_style="dim", justify="right" if place else "left")
    for tier, sizes in found.items():
        for size, runs in sizes.items():
            figures = (f"{percentile(runs, place):.2f}" for place in (50, 99))
            table.add_row(tier, f"{size:,}", *figures, str(len(runs)))
    console.print(table, highlight=False)
