"""The commands of `cprjob`: they parse options and call other modules of this package.

Each command imports its own code when it runs, so that `cprjob --help` and completion import none of it.
"""

from __future__ import annotations

import os
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cpr_contract import CONTRACT_VERSION
from cpr_operator.cli.command_errors import DocumentError, OptionError
from cpr_operator.cli.command_options import ClusterOptions, Endpoint, Source, Workdir, on_cluster
from cpr_operator.cli.console import err, interruptible, out, reported_errors
from cpr_operator.cli.groups import bench_commands, data, snapshots
from cpr_operator.cli.jobs import jobs
from cpr_operator.cli.kill_options import EXAMPLES, parse_kill
from cpr_operator.cli.models import models

if TYPE_CHECKING:
    from cpr_operator.api.status import Status

StoredSource = Annotated[
    str | None,
    typer.Argument(
        metavar="[cpr/NAME|FILE|URI]",
        help="A job on the cluster, a file with one and its status (YAML), or a store: s3://bucket/prefix.",
    ),
]
StoredUid = Annotated[str | None, typer.Option("--job", metavar="UID", help="The job, if a store has several.")]

app = typer.Typer(
    name="cprjob",
    help="Fault-tolerant training of recommendation models.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # the import of the code that draws boxes would double the time of --help
)

_MANIFEST = typer.Argument(
    help="A YAML file with one CPRJob; - is stdin.", exists=True, dir_okay=False, allow_dash=True
)

app.add_typer(jobs)
app.add_typer(models)
app.add_typer(data)
app.add_typer(snapshots)
for commands in bench_commands():
    app.add_typer(commands)


@app.command()
def init(
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="Files with rows: a path, a folder, or a glob in quotes.")
    ],
    *,
    label: Annotated[
        str | None,
        typer.Option(metavar="NAME[=VALUE,...]", help="The column to predict, and those of its values that mean 1."),
    ] = None,
    out_file: Annotated[
        Path | None, typer.Option("--out", help="File to write. Defaults to NAME.yaml, by the name of the data.")
    ] = None,
    rows: Annotated[int | None, typer.Option(min=1, help="Read about this many rows instead of all.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write a manifest that trains the data, with the reason for each line."""
    from cpr_operator.cli.init import InitOptions
    from cpr_operator.cli.init import init as write_manifest

    with reported_errors():
        write_manifest(InitOptions(data, label, out_file, rows, force), out, os.environ)


@app.command()
def run(  # noqa: PLR0913 -- one parameter per option
    file: Annotated[Path | None, _MANIFEST] = None,
    *,
    kill: Annotated[
        list[str] | None,
        typer.Option(metavar="ROLE/INDEX@FRACTION[:SIGNAL|:POD]", help=f"Kill a member during the run, as {EXAMPLES}."),
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
    import asyncio

    from cpr_operator.cli.run import RunOptions
    from cpr_operator.cli.run import run as run_job

    with reported_errors():
        if (file is None) != resume:
            raise DocumentError("give either FILE to start a job, or --resume --workdir DIR to resume one, not both")
        kills = tuple(parse_kill(each) for each in kill or ())
        options = RunOptions(file, kills, tuple(set_ or ()), workdir, report)
        raise typer.Exit(asyncio.run(run_job(options, out)))


@app.command()
def validate(
    files: Annotated[list[Path], typer.Argument(help="YAML files with CPRJobs; - is stdin.")],
) -> None:
    """Check manifests and report every invalid field."""
    from cpr_operator.cli.plan_command import validate_files

    raise typer.Exit(0 if validate_files(tuple(files), out) else 1)


@app.command()
def calibrate(  # noqa: PLR0913 -- one parameter per option
    file: Annotated[Path, _MANIFEST],
    *,
    levels: Annotated[str, typer.Option(help="Fractions of samples to lose, separated by commas.")] = "0.05,0.1,0.2",
    seeds: Annotated[int, typer.Option(min=2, help="Number of data orders to run each level with.")] = 5,
    samples: Annotated[int | None, typer.Option(min=1, help="Train this many samples per run instead of all.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Write a plot of the runs to this file.")] = None,
) -> None:
    """Measure how much AUC lost samples cost: the sensitivity of an AUCDrop budget."""
    from cpr_operator.cli.calibrate import CalibrateOptions
    from cpr_operator.cli.calibrate import calibrate as calibrate_job
    from cpr_operator.cli.sensitivity import parse_levels

    with reported_errors():
        options = CalibrateOptions(file, parse_levels(levels), seeds, samples, json, plot)
        calibrate_job(options, out, err, os.environ)


@app.command()
@on_cluster
def plan(
    source: Source = None,
    *,
    workdir: Workdir = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    kube: ClusterOptions,
) -> None:
    """Show the plan of a job: its recovery mode, save interval and expected cost, and changes that would alter it."""
    from cpr_operator.cli.job_source import find_job
    from cpr_operator.cli.plan_command import plan as plan_job

    plan_job(find_job(source, workdir, kube), as_json=json, out=out)


@app.command()
@on_cluster
def report(  # noqa: PLR0913 -- one parameter per option
    source: StoredSource = None,
    *,
    workdir: Workdir = None,
    endpoint: Endpoint = None,
    uid: StoredUid = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write a page with charts to this file instead.", dir_okay=False)
    ] = None,
    kube: ClusterOptions,
) -> None:
    """Show a job's outcome so far: its progress and scores, and the cost of failures."""
    from cpr_operator.cli.job_source import find_events, find_job
    from cpr_operator.cli.report import next_local_step, next_step_of_stored, next_step_on_cluster, show_outcome
    from cpr_operator.cli.stored_jobs import find_stored

    if json and html:
        raise OptionError("--json prints, and --html writes a page; give one of them")
    stored = find_stored(source, endpoint, uid)
    job = stored.job if stored else find_job(source, workdir, kube)
    if html:
        from cpr_operator.cli.pictures.report_page import write_page

        events = stored.events if stored else find_events(job, source, workdir, kube)
        write_page(job, events, stored.written_s if stored else time.time(), html, out)
    else:

        def next_step(status: Status, name: str) -> str:
            if stored:
                return next_step_of_stored(stored.written_s)
            return next_local_step(status, workdir) if workdir else next_step_on_cluster(status, name, kube.text)

        show_outcome(job, next_step, out, as_json=json)


@app.command()
@on_cluster
def ui(  # noqa: PLR0913 -- one parameter per option
    store: Annotated[
        str | None,
        typer.Argument(metavar="[URI]", help="A store, for its recorded jobs: s3://bucket/prefix or file:///folder."),
    ] = None,
    *,
    endpoint: Endpoint = None,
    workdir: Annotated[
        Path | None, typer.Option(help="Show a local run, or all runs in the folders below, in place of a cluster.")
    ] = None,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Show the jobs of the whole cluster.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0 for any that is free.")] = 7080,
    kube: ClusterOptions,
) -> None:
    """Show all jobs in a browser, with live updates. It only reads."""
    from cpr_operator.cli.ui import choose_jobs, serve

    with interruptible():
        jobs = choose_jobs(store, workdir, endpoint, kube, all_namespaces=all_namespaces)
        serve(jobs, port, out)


@app.command("version")
def show_version() -> None:
    """Print the version of cprjob and of its contract with the trainer image."""
    out.print(f"cprjob {version('cprjob')}, contract {CONTRACT_VERSION}", highlight=False)


def _show_version_and_exit(*, requested: bool) -> None:
    if requested:
        show_version()
        raise typer.Exit


@app.callback()
def _program(
    *,
    version_: Annotated[
        bool, typer.Option("--version", callback=_show_version_and_exit, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Fault-tolerant training of recommendation models."""
