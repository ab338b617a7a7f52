"""The commands of `cprjob bench`. They parse; the work is done by the packages beside this module."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, get_args

import typer

from cpr_contract.spec import Bits, Precision, Strategy
from cpr_operator.cli.bench.priority import PriorityOptions, bench_priority
from cpr_operator.cli.bench.snapshot import SnapshotOptions, bench_snapshot
from cpr_operator.cli.bench.train import TrainOptions, bench_train
from cpr_operator.cli.bench.train.presets import Preset
from cpr_operator.cli.console import err, out, usage_errors

bench = typer.Typer(name="bench", help="Measure parts of the product on this machine.", no_args_is_help=True)

_STRATEGIES: tuple[str, ...] = get_args(Strategy)
_BITS: tuple[int, ...] = get_args(Bits)


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


@bench.command()
def train(  # noqa: PLR0913 -- one parameter per option
    *,
    preset: Annotated[Preset, typer.Option(help="The model.")] = Preset.KAGGLE,
    rows: Annotated[int, typer.Option(min=1, help="The most rows that a table has.")] = 100_000,
    trainers: Annotated[int, typer.Option(min=1, help="Trainers of CPRJob.")] = 1,
    shards: Annotated[int, typer.Option(min=1, help="Shards of CPRJob.")] = 2,
    workers: Annotated[int, typer.Option(min=1, help="Workers that divide a step of a trainer.")] = 1,
    precision: Annotated[Precision, typer.Option(help="What the dense network computes in.")] = "fp32",
    repeats: Annotated[int, typer.Option(min=1, help="Windows of each contender, in turn.")] = 3,
    seconds: Annotated[int, typer.Option(min=2, help="Length of a window.")] = 15,
    peer: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=COMMAND", help="Another program that trains the job; may be repeated."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare the speed of CPRJob on this machine with training the same model in one process."""
    with usage_errors():
        options = TrainOptions(
            preset=preset,
            rows=rows,
            trainers=trainers,
            shards=shards,
            workers=workers,
            precision=precision,
            repeats=repeats,
            seconds=seconds,
            json=json,
            peers=tuple(peer or ()),
        )
        bench_train(options, out, err, os.environ)


@bench.command()
def snapshot(  # noqa: PLR0913 -- one parameter per option
    *,
    rows: Annotated[int, typer.Option(min=1, help="Rows of the shard.")] = 1 << 21,
    dim: Annotated[int, typer.Option(min=1, help="Values of a row.")] = 64,
    store: Annotated[
        str | None, typer.Option(metavar="URI", help="file:///folder or s3://bucket/prefix; else a temporary folder.")
    ] = None,
    endpoint: Annotated[str | None, typer.Option(metavar="URL", help="Where s3:// is, as https://host:port.")] = None,
    strategy: Annotated[
        list[str] | None, typer.Option(help="Weigh saves of this strategy alone; may be repeated.")
    ] = None,
    bits: Annotated[list[int] | None, typer.Option(help="And of this width alone; may be repeated.")] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="MIB_S", help="MiB/s of a save while training goes on.")] = 64,
    repeats: Annotated[int, typer.Option(min=1, help="Of everything that is timed.")] = 5,
    window: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Training between two saves.")] = 10.0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure saves and restores of one shard, what training notices of them, and their bytes."""
    with usage_errors():
        options = SnapshotOptions(
            rows=rows,
            dim=dim,
            store=store,
            endpoint=endpoint,
            strategies=tuple(strategy or _STRATEGIES),
            bits=tuple(bits or _BITS),
            limit_mib_s=limit,
            repeats=repeats,
            window_s=window,
            json=json,
        )
        bench_snapshot(options, out, err, os.environ)
