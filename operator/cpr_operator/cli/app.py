"""The commands of `cprjob`. They parse options; the modules beside this one do the work."""

from __future__ import annotations

import os
import time
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from cpr_contract import CONTRACT_VERSION
from cpr_operator.cli.bench import bench
from cpr_operator.cli.calibrate import CalibrateOptions, parse_levels
from cpr_operator.cli.calibrate import calibrate as calibrate_job
from cpr_operator.cli.console import err, out, usage_errors
from cpr_operator.cli.data import data
from cpr_operator.cli.document import DocumentError
from cpr_operator.cli.evaluate import evaluate as evaluate_model
from cpr_operator.cli.export import export as export_model
from cpr_operator.cli.export import find_job, source_of
from cpr_operator.cli.kills import SPECIMEN, parse_kill
from cpr_operator.cli.plan import plan as plan_job
from cpr_operator.cli.run import RunOptions
from cpr_operator.cli.run import run as run_job
from cpr_operator.cli.simulate import Preset, SimulateOptions
from cpr_operator.cli.simulate import simulate as simulate_jobs
from cpr_operator.cli.snapshots import snapshots
from cpr_operator.cli.validate import validate_files

app = typer.Typer(
    name="cprjob",
    help="Fault-tolerant training of recommendation models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(bench)
app.add_typer(data)
app.add_typer(snapshots)


@app.command()
def run(  # noqa: PLR0913 -- one parameter per option
    file: Annotated[
        Path | None, typer.Argument(help="A YAML file with one CPRJob.", exists=True, dir_okay=False)
    ] = None,
    *,
    kill: Annotated[
        list[str] | None,
        typer.Option(metavar="ROLE/INDEX@FRACTION[:SIGNAL|:POD]", help=f"Kill a member during the run, as {SPECIMEN}."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Change a field of spec, for example data.samples=20000."),
    ] = None,
    workdir: Annotated[Path | None, typer.Option(help="Folder for saves, logs and the job's state.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write the job's outcome to this file, as JSON.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the job in --workdir.")] = False,
) -> None:
    """Train on this machine, with processes for pods and a folder for the store."""
    with usage_errors():
        if (file is None) != resume:
            raise DocumentError("give either FILE to start a job, or --resume --workdir DIR to resume one, not both")
        kills = tuple(parse_kill(each) for each in kill or ())
        options = RunOptions(file, kills, tuple(set_ or ()), workdir, report)
        raise typer.Exit(run_job(options, out))


@app.command()
def validate(
    files: Annotated[list[Path], typer.Argument(help="YAML files with CPRJobs.")],
) -> None:
    """Check manifests and report every invalid field."""
    raise typer.Exit(0 if validate_files(tuple(files), out) else 1)


@app.command()
def export(
    file: Annotated[
        Path | None, typer.Argument(help="A CPRJob with its status, as written by kubectl get -o yaml.", exists=True)
    ] = None,
    *,
    to: Annotated[Path, typer.Option(help="Folder to write the model to.")],
    workdir: Annotated[Path | None, typer.Option(help="Working folder of a local run, in place of FILE.")] = None,
) -> None:
    """Write a finished job's model as safetensors."""
    with usage_errors():
        source = source_of(find_job(file, workdir))
        raise typer.Exit(export_model(source, to, os.environ))


@app.command()
def evaluate(
    file: Annotated[
        Path | None, typer.Argument(help="A CPRJob with its status, as written by kubectl get -o yaml.", exists=True)
    ] = None,
    *,
    workdir: Annotated[Path | None, typer.Option(help="Working folder of a local run, in place of FILE.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Score a finished job's model on the held-out rows."""
    with usage_errors():
        evaluate_model(source_of(find_job(file, workdir)), out, os.environ, as_json=json)


@app.command()
def calibrate(  # noqa: PLR0913 -- one parameter per option
    file: Annotated[Path, typer.Argument(help="A YAML file with one CPRJob.", exists=True, dir_okay=False)],
    *,
    levels: Annotated[str, typer.Option(help="Fractions of samples to lose, separated by commas.")] = "0.05,0.1,0.2",
    seeds: Annotated[int, typer.Option(min=2, help="Number of data orders to run each level with.")] = 5,
    samples: Annotated[int | None, typer.Option(min=1, help="Train this many samples per run instead of all.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Write a plot of the runs to this file.")] = None,
) -> None:
    """Measure how much AUC lost samples cost: the sensitivity of an AUCDrop budget."""
    with usage_errors():
        options = CalibrateOptions(file, parse_levels(levels), seeds, samples, json, plot)
        calibrate_job(options, out, err, os.environ)


@app.command()
def plan(
    file: Annotated[Path, typer.Argument(help="A YAML file with one CPRJob.", exists=True, dir_okay=False)],
    *,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show how a job would recover and save, the expected cost, and what would change the plan."""
    with usage_errors():
        plan_job(file, as_json=json, out=out)


@app.command()
def simulate(  # noqa: PLR0913 -- one parameter per option
    *,
    preset: Annotated[Preset | None, typer.Option(help="The job to simulate: paper, unless --file is given.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="A YAML file with one CPRJob.", exists=True, dir_okay=False)
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
    with usage_errors():
        options = SimulateOptions(
            preset, file, hours, shards, mtbf, told_mtbf, lost_share, told_lost, failures, runs, seed, json, plot
        )
        simulate_jobs(options, out, err, time.process_time)


@app.command("version")
def show_version() -> None:
    """Print the version of cprjob and of its contract with the trainer image."""
    out.print(f"cprjob {version('cprjob')}, contract {CONTRACT_VERSION}", highlight=False)
