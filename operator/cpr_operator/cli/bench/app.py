"""The commands of `cprjob bench`. They parse; the work is done by the packages beside this module."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from cpr_operator.cli.bench.priority import PriorityOptions, bench_priority
from cpr_operator.cli.console import err, out, usage_errors

bench = typer.Typer(name="bench", help="Measure parts of the product on this machine.", no_args_is_help=True)


@bench.callback()
def _bench() -> None:
    """Keep `priority` a command of its own, also while it is the only one."""


@bench.command()
def priority(  # noqa: PLR0913 -- one parameter per option
    *,
    data: Annotated[
        Path,
        typer.Option(help="Criteo rows, or a TSV with a header and a column `label`; gzip or plain.", exists=True),
    ],
    seeds: Annotated[int, typer.Option(min=2, help="Orders of the data to run each strategy in.")] = 10,
    interval: Annotated[float, typer.Option(help="Portion of the run between two saves with Full.")] = 0.1,
    anchors: Annotated[int, typer.Option(min=2, help="Intervals between saves of everything with the others.")] = 2,
    fraction: Annotated[float, typer.Option(help="Portion of an interval between two priority saves.")] = 0.125,
    failures: Annotated[int, typer.Option(min=1, help="Failures a run, each of half of the shards.")] = 4,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Change a field of the job, as data.samples=20000."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare what strategies of saving lose to the same failures, writing as many rows each."""
    with usage_errors():
        options = PriorityOptions(data, seeds, interval, anchors, fraction, failures, tuple(set_ or ()), json)
        bench_priority(options, out, err, os.environ)
