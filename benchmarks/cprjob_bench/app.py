"""The commands that this distribution adds to `cprjob`. They parse options and call `cprjob_bench.commands`.

Each command imports only its own code.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, get_args

import typer

from cpr_contract.choices import Bits, Device, Precision, Strategy
from cpr_operator.cli.command_options import ClusterOptions, on_cluster
from cpr_operator.cli.console import err, out, reported_errors
from cprjob_bench.options import RecoveryTier, RedundancyMode, ScaleCurve, SimulatePreset, TrainPreset

#: `cprjob` finds it by its entry point, and adds its commands.
app = typer.Typer(rich_markup_mode=None)
bench = typer.Typer(
    name="bench", help="Measure speed and losses on this machine.", no_args_is_help=True, rich_markup_mode=None
)

app.add_typer(bench)

_STRATEGIES: tuple[str, ...] = get_args(Strategy)
_BITS: tuple[int, ...] = get_args(Bits)


@bench.command()
def priority(  # noqa: PLR0913 -- one parameter per option
    *,
    data: Annotated[
        Path,
        typer.Option(help="Criteo rows, or a TSV with a header and a `label` column. Plain or gzip.", exists=True),
    ],
    seeds: Annotated[int, typer.Option(min=2, help="Number of data orders to run each strategy with.")] = 10,
    interval: Annotated[float, typer.Option(help="Interval between saves with Full, as a fraction of the run.")] = 0.1,
    anchors: Annotated[int, typer.Option(min=2, help="Intervals between full saves with the other strategies.")] = 2,
    fraction: Annotated[float, typer.Option(help="Time between priority saves, as a fraction of an interval.")] = 0.125,
    failures: Annotated[int, typer.Option(min=1, help="Failures per run, each of half of the shards.")] = 4,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Change a field of spec, for example data.samples=20000."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare the losses of saving strategies under the same failures, with equally many rows written."""
    from cprjob_bench.commands.priority_bench import PriorityOptions, bench_priority

    with reported_errors():
        options = PriorityOptions(data, seeds, interval, anchors, fraction, failures, tuple(set_ or ()), json)
        bench_priority(options, out, err, os.environ)


@bench.command()
def train(  # noqa: PLR0913 -- one parameter per option
    *,
    preset: Annotated[TrainPreset, typer.Option(help="Model to train.")] = TrainPreset.KAGGLE,
    rows: Annotated[int, typer.Option(min=1, help="Maximum number of rows per table.")] = 100_000,
    trainers: Annotated[int, typer.Option(min=1, help="Number of trainers of the CPRJob.")] = 1,
    shards: Annotated[int, typer.Option(min=1, help="Number of shards of the CPRJob.")] = 2,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Compute threads per trainer. Default: measured before, as a job does.")
    ] = None,
    precision: Annotated[Precision, typer.Option(help="Precision of the dense network.")] = "fp32",
    device: Annotated[Device, typer.Option(help="Device of the dense network, in all programs.")] = "cpu",
    entrypoint: Annotated[
        str | None,
        typer.Option(metavar="MODULE:NAME", help="Network of your own, in all programs. Default: that of the preset."),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Number of windows to measure per program.")] = 3,
    seconds: Annotated[int, typer.Option(min=2, help="Length of a window, in seconds.")] = 15,
    peer: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=COMMAND", help="Another program that trains the job. May be repeated."),
    ] = None,
    encrypted: Annotated[bool, typer.Option("--encrypted", help="Measure the job with TLS as well.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare the training speed of a CPRJob with that of one plain process on this machine."""
    from cprjob_bench.commands.train_bench import TrainOptions, bench_train

    with reported_errors():
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
            baselines=tuple(peer or ()),
            encrypted=encrypted,
            device=device,
            entrypoint=entrypoint,
        )
        bench_train(options, out, err, os.environ)


@bench.command()
def snapshot(  # noqa: PLR0913 -- one parameter per option
    *,
    rows: Annotated[int, typer.Option(min=1, help="Rows of the shard.")] = 1 << 21,
    dim: Annotated[int, typer.Option(min=1, help="Values per row.")] = 64,
    store: Annotated[
        str | None,
        typer.Option(metavar="URI", help="file:///folder or s3://bucket/prefix. Default: a temporary folder."),
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="Endpoint of the s3:// store, as https://host:port.")
    ] = None,
    strategy: Annotated[
        list[str] | None, typer.Option(help="Measure the size of saves of this strategy only. May be repeated.")
    ] = None,
    bits: Annotated[
        list[int] | None, typer.Option(help="Measure the size of saves of this bit width only. May be repeated.")
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, metavar="MIB_S", help="Rate limit of a save during training, in MiB/s.")
    ] = 64,
    repeats: Annotated[int, typer.Option(min=1, help="Number of repeats of each timing.")] = 5,
    window: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Seconds of training between two saves.")
    ] = 10.0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure one shard's saves and restores: their speed, their effect on training, their size."""
    from cprjob_bench.commands.snapshot_bench import SnapshotOptions, bench_snapshot

    with reported_errors():
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


@bench.command()
def freshness(  # noqa: PLR0913 -- one parameter per option
    *,
    seconds: Annotated[int, typer.Option(min=5, help="Seconds in which clicks are written.")] = 60,
    repeats: Annotated[int, typer.Option(min=1, help="Number of windows to measure per job.")] = 3,
    window: Annotated[int, typer.Option(min=2, help="Length of a window, in seconds.")] = 15,
    size: Annotated[int, typer.Option(min=1, metavar="MIB", help="Size of the model with timed lookups.")] = 100,
    broker: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Send the clicks to a new topic of this broker of Kafka.")
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure the time from a click to the served vector of its id, and the cost of publishing."""
    from cprjob_bench.commands.freshness_bench import FreshnessOptions, bench_freshness

    with reported_errors():
        bench_freshness(FreshnessOptions(seconds, repeats, window, size, broker, json), out, err, os.environ)


@bench.command()
@on_cluster
def recovery(  # noqa: PLR0913 -- one parameter per option
    *,
    tier: Annotated[list[RecoveryTier] | None, typer.Option(help="Measure this tier only. May be repeated.")] = None,
    size: Annotated[
        list[int] | None, typer.Option(min=1, metavar="MIB", help="Size of each shard. May be repeated.")
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="Number of kills per tier and size.")] = 10,
    cluster: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Measure pods of a cluster, with the image, store and templates of this file's CPRJob.",
            exists=True,
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    kube: ClusterOptions,
) -> None:
    """Measure the pause of training after a member is killed."""
    from cprjob_bench.commands.recovery_bench import RecoveryOptions, bench_recovery

    with reported_errors():
        sizes = tuple(size or (64, 512, 2048))
        options = RecoveryOptions(tuple(tier or RecoveryTier), sizes, runs, json, cluster)
        bench_recovery(options, kube, out, err, os.environ)


@bench.command()
def redundancy(  # noqa: PLR0913 -- one parameter per option
    *,
    mode: Annotated[
        list[RedundancyMode] | None, typer.Option(help="Measure only this mode and none. May be repeated.")
    ] = None,
    preset: Annotated[TrainPreset, typer.Option(help="Model to train while nothing fails.")] = TrainPreset.KAGGLE,
    rows: Annotated[int, typer.Option(min=1, help="Maximum number of rows per table.")] = 100_000,
    shards: Annotated[int, typer.Option(min=1, help="Number of shards of that job.")] = 5,
    size: Annotated[
        list[int] | None, typer.Option(min=0, metavar="MIB", help="Size of a killed shard. May be repeated; 0: none.")
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="Number of kills per mode and size.")] = 3,
    repeats: Annotated[int, typer.Option(min=1, help="Number of windows to measure per mode.")] = 3,
    seconds: Annotated[int, typer.Option(min=2, help="Length of a window, in seconds.")] = 15,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare the costs of replay and parity without failures, and the recovery of a killed shard."""
    from cprjob_bench.commands.redundancy_bench import RedundancyOptions, bench_redundancy

    with reported_errors():
        sizes = tuple(each for each in (size or (64, 512, 2048)) if each)
        options = RedundancyOptions(
            modes=tuple(mode or RedundancyMode),
            preset=preset,
            rows=rows,
            shards=shards,
            sizes=sizes,
            runs=runs,
            repeats=repeats,
            seconds=seconds,
            json=json,
        )
        bench_redundancy(options, out, err, os.environ)


@bench.command()
def scale(
    *,
    curve: Annotated[list[ScaleCurve] | None, typer.Option(help="Measure this curve only. May be repeated.")] = None,
    sizes: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CURVE=SIZE,...", help="Sizes of a curve, as in rows=1e5,1e6 or documents=64x16. May be repeated."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="MIB", help="Maximum size of a shard in the curve saves.")] = 256,
    seconds: Annotated[int, typer.Option(min=1, help="Length of a job's window, in seconds.")] = 3,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure how costs grow with the size of a job, and mark those that grow faster than it."""
    from cprjob_bench.commands.scale_bench import ScaleOptions, bench_scale

    with reported_errors():
        options = ScaleOptions(tuple(curve or ScaleCurve), tuple(sizes or ()), limit, seconds, json)
        bench_scale(options, out, err, os.environ)


@app.command()
def simulate(  # noqa: PLR0913 -- one parameter per option
    *,
    preset: Annotated[
        SimulatePreset | None, typer.Option(help="The job to simulate: paper, unless --file is given.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "-f",
            help="A YAML file with one CPRJob; - is stdin.",
            exists=True,
            dir_okay=False,
            allow_dash=True,
        ),
    ] = None,
    hours: Annotated[float | None, typer.Option(min=0.01, help="Hours of useful training.")] = None,
    shards: Annotated[int | None, typer.Option(min=1, help="Number of shards.")] = None,
    mtbf: Annotated[float | None, typer.Option(min=0.001, help="Mean hours of training between failures.")] = None,
    told_mtbf: Annotated[
        float | None, typer.Option(min=0.001, help="The --mtbf that the policy assumes. Defaults to --mtbf.")
    ] = None,
    lost_share: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="Fraction of the shards lost per failure.")
    ] = None,
    told_lost: Annotated[
        float | None,
        typer.Option(min=1.0, help="Shards lost per failure that the policy assumes."),
    ] = None,
    failures: Annotated[
        str, typer.Option(metavar="KIND", help="Failures to simulate: exponential, gamma, storms or trace:FILE.")
    ] = "exponential",
    runs: Annotated[int | None, typer.Option(min=1, help="Jobs to simulate per strategy.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the failures.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Write a plot of the result to this file.")] = None,
) -> None:
    """Compare recovery strategies by simulating many jobs with the operator's policy."""
    from cprjob_bench.commands.simulate import SimulateOptions
    from cprjob_bench.commands.simulate import simulate as simulate_jobs

    with reported_errors():
        options = SimulateOptions(
            preset, file, hours, shards, mtbf, told_mtbf, lost_share, told_lost, failures, runs, seed, json, plot
        )
        simulate_jobs(options, out, err, time.process_time)
