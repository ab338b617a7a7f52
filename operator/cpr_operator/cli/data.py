"""The command of `cprjob data`. It parses options; `inspection` does the work, and is imported when it is needed."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from cpr_operator.cli.console import out, usage_errors

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
