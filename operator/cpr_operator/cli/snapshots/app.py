"""The commands of `cprjob snapshots`. They parse options; the modules beside this one do the work.

Each command imports its own code alone.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from cpr_operator.cli.console import out, usage_errors

snapshots = typer.Typer(
    name="snapshots", help="List, verify and prune a job's saves.", no_args_is_help=True, rich_markup_mode=None
)

Where = Annotated[
    str | None,
    typer.Argument(metavar="[SOURCE]", help="A CPRJob (YAML), or a store: s3://bucket/prefix or file:///folder."),
]
Workdir = Annotated[Path | None, typer.Option(help="Working folder of a local run, in place of SOURCE.")]
Endpoint = Annotated[
    str | None, typer.Option(metavar="URL", help="Endpoint of an s3:// store, as http[s]://host:port.")
]
Job = Annotated[
    str | None, typer.Option(metavar="UID", help="Only this job's saves; by default those of the CPRJob in SOURCE.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@snapshots.command()
def ls(
    source: Where = None,
    *,
    workdir: Workdir = None,
    endpoint: Endpoint = None,
    job: Job = None,
    json: Json = False,
) -> None:
    """List the points to which a job can be restored: anchors, and the saves beside them."""
    from cpr_operator.cli.snapshots.command import list_points
    from cpr_operator.cli.snapshots.source import find_source

    with usage_errors():
        found = find_source(source, workdir, endpoint, job)
        raise typer.Exit(list_points(found, out, os.environ, as_json=json))


@snapshots.command()
def verify(
    source: Where = None,
    *,
    workdir: Workdir = None,
    endpoint: Endpoint = None,
    job: Job = None,
    json: Json = False,
) -> None:
    """Read every object of every save, and report each that is damaged."""
    from cpr_operator.cli.snapshots.command import verify_saves
    from cpr_operator.cli.snapshots.source import find_source

    with usage_errors():
        found = find_source(source, workdir, endpoint, job)
        raise typer.Exit(verify_saves(found, out, os.environ, as_json=json))


@snapshots.command()
def prune(  # noqa: PLR0913 -- one parameter per option
    source: Where = None,
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
) -> None:
    """Show the saves that no restore can need any more, and delete them with --delete."""
    from cpr_operator.cli.snapshots.command import prune_saves
    from cpr_operator.cli.snapshots.source import find_source

    with usage_errors():
        found = find_source(source, workdir, endpoint, job)
        prune_saves(found, 0 if all_ else keep, out, os.environ, delete=delete, as_json=json)
