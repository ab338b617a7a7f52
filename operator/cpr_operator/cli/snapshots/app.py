"""The commands of `cprjob snapshots`. They parse options; the modules beside this one do the work.

Each command imports its own code alone.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from cpr_operator.cli.console import out, usage_errors
from cpr_operator.cli.where import Where, on_cluster

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
    from cpr_operator.cli.snapshots.command import list_points
    from cpr_operator.cli.snapshots.source import find_source

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
    from cpr_operator.cli.snapshots.command import verify_saves
    from cpr_operator.cli.snapshots.source import find_source

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
    from cpr_operator.cli.snapshots.command import check_phase, prune_saves
    from cpr_operator.cli.snapshots.source import find_source

    with usage_errors():
        found = find_source(source, workdir, endpoint, job, where)
        keep = 0 if all_ else keep
        check_phase(found, everything=keep == 0)
        with asking(source, where, os.environ) as ask:
            prune_saves(found, keep, out, ask, delete=delete, as_json=json)
