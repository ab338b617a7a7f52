"""Groups of commands: `cprjob data`, `cprjob snapshots`, and the commands of cprjob-bench. They parse options."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Annotated

import typer

from cpr_operator.cli.command_errors import MissingPackageError
from cpr_operator.cli.command_options import ClusterOptions, Endpoint, Workdir, on_cluster
from cpr_operator.cli.console import out, reported_errors

data = typer.Typer(name="data", help="Inspect training data.", no_args_is_help=True, rich_markup_mode=None)
snapshots = typer.Typer(
    name="snapshots", help="List, verify and prune a job's saves.", no_args_is_help=True, rich_markup_mode=None
)

Named = Annotated[
    str | None,
    typer.Argument(
        metavar="[cpr/NAME|FILE|URI]",
        help="A job on the cluster, a file with one (YAML), or a store: s3://bucket/prefix or file:///folder.",
    ),
]
Job = Annotated[
    str | None, typer.Option(metavar="UID", help="Only this job's saves; by default those of the CPRJob in SOURCE.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

#: The entry points of this group are Typer apps, which add commands to `cprjob`.
GROUP = "cprjob.commands"
_ANY_OPTIONS = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


@data.callback()
def _group() -> None:
    """Inspect training data."""


@data.command()
def inspect(
    target: Annotated[
        str,
        typer.Argument(metavar="FILE|JOB", help="A CPRJob (YAML), or files: a path, a glob, or a folder ending in /."),
    ],
    *,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the data's columns, its bad rows, and how a job would read it."""
    from cpr_operator.cli.data_inspect import inspect_data

    with reported_errors():
        raise typer.Exit(inspect_data(target, out, os.environ, as_json=json))


@snapshots.command()
@on_cluster
def ls(  # noqa: PLR0913 -- one parameter per option
    source: Named = None,
    *,
    workdir: Workdir = None,
    endpoint: Endpoint = None,
    job: Job = None,
    json: Json = False,
    kube: ClusterOptions,
) -> None:
    """List the points to which a job can be restored: anchors and single saves."""
    from cpr_operator.cli.snapshots import list_points
    from cpr_operator.cli.store_source import find_source
    from cpr_operator.cli.trainer_process import role_runner

    found = find_source(source, workdir, endpoint, job, kube)
    with role_runner(source, kube, os.environ) as run:
        raise typer.Exit(list_points(found, out, run, as_json=json))


@snapshots.command()
@on_cluster
def verify(  # noqa: PLR0913 -- one parameter per option
    source: Named = None,
    *,
    workdir: Workdir = None,
    endpoint: Endpoint = None,
    job: Job = None,
    json: Json = False,
    kube: ClusterOptions,
) -> None:
    """Read every object of every save, and report each that is damaged."""
    from cpr_operator.cli.snapshots import verify_saves
    from cpr_operator.cli.store_source import find_source
    from cpr_operator.cli.trainer_process import role_runner

    found = find_source(source, workdir, endpoint, job, kube)
    with role_runner(source, kube, os.environ) as run:
        raise typer.Exit(verify_saves(found, out, run, as_json=json))


@snapshots.command()
@on_cluster
def prune(  # noqa: PLR0913 -- one parameter per option
    source: Named = None,
    *,
    workdir: Workdir = None,
    endpoint: Endpoint = None,
    job: Job = None,
    keep: Annotated[
        int | None, typer.Option(min=1, help="Number of anchors to keep; by default the job's own.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Keep nothing of the job.")] = False,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete. Without it, only show what would be deleted.")
    ] = False,
    json: Json = False,
    kube: ClusterOptions,
) -> None:
    """Show the saves that no restore needs any more, and delete them with --delete."""
    from cpr_operator.cli.snapshots import check_phase, prune_saves
    from cpr_operator.cli.store_source import find_source
    from cpr_operator.cli.trainer_process import role_runner

    found = find_source(source, workdir, endpoint, job, kube)
    keep = 0 if all_ else keep
    check_phase(found, everything=keep == 0)
    with role_runner(source, kube, os.environ) as run:
        prune_saves(found, keep, out, run, delete=delete, as_json=json)


def bench_commands() -> Iterator[typer.Typer]:
    """Yield the installed apps, or without any an app with commands that exit with the remedy."""
    installed = entry_points(group=GROUP)
    yield from (each.load() for each in installed)
    if installed:
        return
    app = typer.Typer(rich_markup_mode=None)
    for name in ("bench", "simulate"):
        app.command(name, help="Not installed: part of cprjob-bench.", context_settings=_ANY_OPTIONS)(_not_installed)
    yield app


def _not_installed(context: typer.Context) -> None:
    with reported_errors():
        raise MissingPackageError(
            f"cprjob {context.info_name} is not installed: pip install cprjob-bench, "
            "or pip install ./benchmarks in a checkout"
        )
