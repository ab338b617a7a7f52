"""The groups of commands: `cprjob data`, `cprjob snapshots`, and those of cprjob-bench. They parse options."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated

import typer

from cpr_operator.cli import NeedError
from cpr_operator.cli.console import Where, on_cluster, out, usage_errors

# The command of `cprjob data`. It parses options; `inspection` does the work, and is imported when it is needed.


data = typer.Typer(name="data", help="Inspect training data.", no_args_is_help=True, rich_markup_mode=None)


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
    from cpr_operator.cli.inspection import inspect_data

    with usage_errors():
        raise typer.Exit(inspect_data(target, out, os.environ, as_json=json))


# The commands of `cprjob snapshots`. They parse options; the modules beside this one do the work.
#
# Each command imports its own code alone.


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
Workdir = Annotated[Path | None, typer.Option(help="Working folder of a local run, in place of a name.")]
Endpoint = Annotated[
    str | None, typer.Option(metavar="URL", help="Endpoint of an s3:// store, as http[s]://host:port.")
]
Job = Annotated[
    str | None, typer.Option(metavar="UID", help="Only this job's saves; by default those of the CPRJob in SOURCE.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@snapshots.command()
@on_cluster
def ls(  # noqa: PLR0913 -- one parameter per option
    source: Named = None,
    *,
    workdir: Workdir = None,
    endpoint: Endpoint = None,
    job: Job = None,
    json: Json = False,
    where: Where,
) -> None:
    """List the points to which a job can be restored: anchors, and the saves beside them."""
    from cpr_operator.cli.asking import asking
    from cpr_operator.cli.snapshots import find_source, list_points

    with usage_errors():
        found = find_source(source, workdir, endpoint, job, where)
        with asking(source, where, os.environ) as ask:
            raise typer.Exit(list_points(found, out, ask, as_json=json))


@snapshots.command()
@on_cluster
def verify(  # noqa: PLR0913 -- one parameter per option
    source: Named = None,
    *,
    workdir: Workdir = None,
    endpoint: Endpoint = None,
    job: Job = None,
    json: Json = False,
    where: Where,
) -> None:
    """Read every object of every save, and report each that is damaged."""
    from cpr_operator.cli.asking import asking
    from cpr_operator.cli.snapshots import find_source, verify_saves

    with usage_errors():
        found = find_source(source, workdir, endpoint, job, where)
        with asking(source, where, os.environ) as ask:
            raise typer.Exit(verify_saves(found, out, ask, as_json=json))


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
    where: Where,
) -> None:
    """Show the saves that no restore can need any more, and delete them with --delete."""
    from cpr_operator.cli.asking import asking
    from cpr_operator.cli.snapshots import check_phase, find_source, prune_saves

    with usage_errors():
        found = find_source(source, workdir, endpoint, job, where)
        keep = 0 if all_ else keep
        check_phase(found, everything=keep == 0)
        with asking(source, where, os.environ) as ask:
            prune_saves(found, keep, out, ask, delete=delete, as_json=json)


# The commands that measure and simulate: those of the distribution cprjob-bench, or where to get it.
#
# They find their way here by an entry point, so that nothing of the product names their code.


#: Entry points of this group are Typer apps, whose commands become commands of `cprjob`.
GROUP = "cprjob.commands"
_ANY_OPTIONS = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def bench_commands() -> Iterator[typer.Typer]:
    """Yield the apps that are installed; if none is, one whose commands say so."""
    installed = entry_points(group=GROUP)
    yield from (each.load() for each in installed)
    if not installed:
        yield _stand_ins()


def _stand_ins() -> typer.Typer:
    app = typer.Typer(rich_markup_mode=None)
    for name in ("bench", "simulate"):
        app.command(name, help="Not installed: part of cprjob-bench.", context_settings=_ANY_OPTIONS)(_say_so)
    return app


def _say_so(context: typer.Context) -> None:
    with usage_errors():
        raise NeedError(
            f"cprjob {context.info_name} is not installed: pip install cprjob-bench, "
            "or pip install ./benchmarks in a checkout"
        )
