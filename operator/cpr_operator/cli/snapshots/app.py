"""The commands of `cprjob snapshots`. They parse; the work is done by the modules beside this one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from cpr_operator.cli.console import out, usage_errors
from cpr_operator.cli.snapshots.command import list_points, prune_saves, verify_saves
from cpr_operator.cli.snapshots.source import find_source

snapshots = typer.Typer(name="snapshots", help="Look at what is saved of a job.", no_args_is_help=True)

Where = Annotated[
    str | None,
    typer.Argument(metavar="[SOURCE]", help="A CPRJob (YAML), or a store: s3://bucket/prefix or file:///folder."),
]
Workdir = Annotated[Path | None, typer.Option(help="The working folder of a local run, instead of SOURCE.")]
Endpoint = Annotated[str | None, typer.Option(metavar="URL", help="Of s3://, as http[s]://host:port.")]
Job = Annotated[str | None, typer.Option(metavar="UID", help="This job alone; a CPRJob with a uid names itself.")]
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
    """List the points that a job can be restored to: anchors, and the saves after them."""
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
    """Read every part of every save, and name each that is not what it has to be."""
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
    keep: Annotated[int | None, typer.Option(min=1, help="How many anchors stay; else the job's own number.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Let nothing of the job stay.")] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Do it; without this, only say what would go.")] = False,
    json: Json = False,
) -> None:
    """Say what no restore can need any more, and delete it if told so."""
    with usage_errors():
        found = find_source(source, workdir, endpoint, job)
        prune_saves(found, 0 if all_ else keep, out, os.environ, delete=delete, as_json=json)
