"""`cprjob simulate`: recovery strategies compared over many jobs with the operator's own policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from cpr_operator.api.validate import parse_document
from cpr_operator.cli.command_errors import OptionError
from cpr_operator.cli.command_options import check_plot
from cpr_operator.cli.document import read_single
from cpr_operator.policy.inputs import Costs
from cpr_operator.policy.plan import duration
from cprjob_bench.commands.bench_result import Result, table
from cprjob_bench.options import SimulatePreset
from cprjob_bench.simulation.simulated_job import (
    DISTRIBUTIONS,
    HOUR_S,
    PRESETS,
    SCALES,
    Failures,
    Job,
    at_scale,
    parse_trace,
    recorded,
)
from cprjob_bench.simulation.study import Summary, as_json, plot_scale, plot_study, study

PAPER: SimulatePreset = "paper"
SCALE: SimulatePreset = "scale"
RUNS = 10_000
#: Overhead and its parts, then losses.
_COSTS = ("overhead", "p50", "p95", "save", "load", "lost", "resch.", "PLS", "p95", "max", "rollbacks", "over")
#: Jobs on thousands of shards fail hundreds of times.
SCALE_RUNS = 100


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """Options of the command. None: the value of the preset or the file."""

    preset: SimulatePreset | None = None
    file: Path | None = None
    hours: float | None = None
    shards: int | None = None
    mtbf_h: float | None = None
    assumed_mtbf_h: float | None = None
    lost_share: float | None = None
    assumed_lost: float | None = None
    failures: str = "exponential"
    runs: int | None = None
    seed: int = 0
    json: bool = False
    plot: Path | None = None


@dataclass(frozen=True, slots=True)
class _Part:
    """One job of the command, with the results of all strategies."""

    job: Job
    summaries: dict[str, Summary]


def simulate(options: SimulateOptions, out: Console, err: Console, clock: Callable[[], float]) -> None:
    """Simulate and print. The speed goes to `err`, measured by a `clock` of CPU seconds.

    Raises OptionError, DocumentError and InvalidSpecError before anything runs.
    """
    if options.plot is not None:
        check_plot(options.plot)
    job = job_of(options)
    failures = failures_of(options.failures, job)
    scale = options.preset == SCALE
    runs = options.runs or (SCALE_RUNS if scale else RUNS)
    began = clock()
    parts = [
        # A job from a file already has the costs of asynchronous saves.
        _Part(each, study(each, failures, runs, options.seed, None if options.file else each.asynchronous))
        for each in ([at_scale(job, shards) for shards in SCALES] if scale else [job])
    ]
    simulated, took = runs * sum(len(part.summaries) for part in parts), clock() - began
    Result(
        _document(options, runs, parts), [each for part in parts for each in (_table(part, runs), _times(part))]
    ).show(out, as_json=options.json)
    err.print(f"{simulated} jobs in {took:.1f} s of one core: {simulated / took:,.0f} jobs per second", highlight=False)
    if options.plot is not None:
        _plot(options.plot, parts, f"{options.file or options.preset or PAPER}: {runs} runs")


def job_of(options: SimulateOptions) -> Job:
    """Return the preset's or the file's job, changed by the options. Raises OptionError."""
    if options.file is not None and options.preset is not None:
        raise OptionError("give either --preset or --file, not both")
    if options.preset == SCALE and options.shards is not None:
        raise OptionError("--preset scale sets the number of shards itself; remove --shards")
    job = PRESETS[options.preset or PAPER] if options.file is None else _from_file(options.file)
    if options.hours is not None:
        job = replace(job, total_s=options.hours * HOUR_S)
    if options.shards is not None:
        job = _losing(replace(job, shards=options.shards), min(job.lost, options.shards))
    if options.mtbf_h is not None:
        job = replace(job, mtbf_s=options.mtbf_h * HOUR_S, assumed_mtbf_s=options.mtbf_h * HOUR_S)
    if options.assumed_mtbf_h is not None:
        job = replace(job, assumed_mtbf_s=options.assumed_mtbf_h * HOUR_S)
    if options.lost_share is not None:
        job = _losing(job, max(round(options.lost_share * job.shards), 1))
    if options.assumed_lost is not None:
        job = replace(job, assumed_lost=options.assumed_lost)
    return job


def failures_of(text: str, job: Job) -> Failures:
    """Return the failures of `exponential`, `gamma`, `storms` or `trace:FILE`. Raises OptionError."""
    if text in DISTRIBUTIONS:
        return DISTRIBUTIONS[text]
    kind, _, path = text.partition(":")
    if kind != "trace" or not path:
        raise OptionError(f"--failures {text!r} is not one of {', '.join(DISTRIBUTIONS)}, trace:FILE")
    try:
        times = parse_trace(Path(path).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise OptionError(f"--failures {text}: {error}") from error
    if any(lost is not None and lost > job.shards for _, lost in times):
        raise OptionError(f"--failures {text}: a failure takes more than the job's {job.shards} shards")
    return recorded(times)


def _losing(job: Job, lost: int) -> Job:
    return replace(job, lost=lost, assumed_lost=float(lost))


def _from_file(path: Path) -> Job:
    """Return the job of a manifest, with default costs and the duration of one mean time between failures."""
    document = read_single(path)
    spec = parse_document(document)
    mtbf_s = float(spec.failure_policy.expected_job_mtbf_seconds)
    return Job(
        total_s=mtbf_s,
        shards=spec.shards.replicas,
        lost=1,
        mtbf_s=mtbf_s,
        limit=spec.accuracy_budget.portion,
        costs=Costs.measured(),
        assumed_mtbf_s=mtbf_s,
        assumed_lost=1.0,
    )


def _document(options: SimulateOptions, runs: int, parts: list[_Part]) -> dict[str, Any]:
    name = None if options.file else options.preset or PAPER
    if options.preset == SCALE:
        sizes = [
            {"shards": part.job.shards, "mtbf_s": part.job.mtbf_s, "strategies": as_json(part.summaries)}
            for part in parts
        ]
        return {"preset": name, "runs": runs, "sizes": sizes}
    return {"preset": name, "runs": runs, "strategies": as_json(parts[0].summaries)}


def _table(part: _Part, runs: int) -> Table:
    job = part.job
    title = (
        f"{runs} jobs of {job.total_s / HOUR_S:.3g} h on {job.shards} shards, with a failure of {job.lost} of them "
        f"every {duration(job.mtbf_s)} and a budget of {job.limit:.3g} of all samples.\n"
        "Overhead and its parts in % of training time."
    )
    shown = table("strategy", *_COSTS, title=title)
    for column in shown.columns:
        column.no_wrap = True
    for name, each in part.summaries.items():
        times = (each.overhead.mean, each.overhead.p50, each.overhead.p95) if each.overhead else (None,) * 3
        percents = (_percent(value) for value in (*times, each.save, each.load, each.lost, each.reschedule))
        losses = (f"{value:.4f}" for value in (each.pls.mean, each.pls.p95, each.pls.max))
        shown.add_row(name, *percents, *losses, f"{each.rollbacks:.3f}", f"{each.over_budget:.1%}")
    return shown


def _times(part: _Part) -> Table:
    """Return the same costs as goodput and its parts, by strategy."""
    causes = ("productive", "saving", "recovering", "repeated")
    shown = table("strategy", *causes, title="Goodput: the time from the first step to the last, in %.")
    for name, each in part.summaries.items():
        time = (None,) * len(causes) if each.time is None else astuple(each.time)
        shown.add_row(name, *map(_percent, time))
    return shown


def _percent(value: float | None) -> str:
    return "no end" if value is None else f"{100 * value:.2f}"


def _plot(path: Path, parts: list[_Part], title: str) -> None:
    if len(parts) > 1:
        plot_scale(path, {part.job.shards: part.summaries for part in parts}, title)
    else:
        plot_study(path, parts[0].summaries, parts[0].job.limit, title)
