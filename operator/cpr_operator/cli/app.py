"""The commands of `cprjob`. They parse and report; the work is done by the modules beside this one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from cpr_contract import CONTRACT_VERSION
from cpr_operator.cli.document import DocumentError, InvalidDocumentError
from cpr_operator.cli.export import export as export_model
from cpr_operator.cli.export import find_job, source_of
from cpr_operator.cli.kills import SPECIMEN, KillError, parse_kill
from cpr_operator.cli.run import RunOptions
from cpr_operator.cli.run import run as run_job
from cpr_operator.cli.validate import show_invalid, validate_files
from cpr_operator.cluster.protocol import ClusterError

#: A shell's usual exit code for a command line that makes no sense.
USAGE = 2

app = typer.Typer(
    name="cprjob",
    help="Fault-tolerant training of recommendation models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
#: A file has no width: lines of it are not broken at 80 columns.
out = Console(width=None if sys.stdout.isatty() else 120)
err = Console(stderr=True)


def main() -> None:
    """The console entry."""
    app()


@app.command()
def run(  # noqa: PLR0913 -- one parameter per option
    file: Annotated[
        Path | None, typer.Argument(help="A YAML file with one CPRJob.", exists=True, dir_okay=False)
    ] = None,
    *,
    kill: Annotated[
        list[str] | None,
        typer.Option(metavar="ROLE/INDEX@FRACTION[:SIGNAL]", help=f"Kill a member on the way, as {SPECIMEN}."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Change a field of spec, as data.samples=20000."),
    ] = None,
    workdir: Annotated[Path | None, typer.Option(help="Where saves, logs and the job's state go.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write what became of the job here, as JSON.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the job in --workdir.")] = False,
) -> None:
    """Train on this machine: pods become processes, and saves go to a folder."""
    with _usage_errors():
        if (file is None) != resume:
            raise DocumentError("name a FILE to start, or --resume --workdir DIR to go on; not both")
        if resume and set_:
            raise DocumentError("--set changes a new run; a job that has begun keeps its spec")
        kills = tuple(parse_kill(each) for each in kill or ())
        options = RunOptions(file, kills, tuple(set_ or ()), workdir, report)
        raise typer.Exit(run_job(options, out))


@app.command()
def validate(
    files: Annotated[list[Path], typer.Argument(help="YAML files with CPRJobs.")],
) -> None:
    """Name every wrong field of every file."""
    raise typer.Exit(0 if validate_files(tuple(files), out) else 1)


@app.command()
def export(
    file: Annotated[
        Path | None, typer.Argument(help="A CPRJob with its status, as kubectl get -o yaml writes it.", exists=True)
    ] = None,
    *,
    to: Annotated[Path, typer.Option(help="The folder to write.")],
    workdir: Annotated[Path | None, typer.Option(help="The working folder of a local run, instead of FILE.")] = None,
) -> None:
    """Write a finished job's model as safetensors."""
    with _usage_errors():
        source = source_of(find_job(file, workdir))
        raise typer.Exit(export_model(source, to, os.environ))


@app.command("version")
def show_version() -> None:
    """Print the version of cprjob and of the contract that it speaks."""
    out.print(f"cprjob {version('cprjob')}, contract {CONTRACT_VERSION}", highlight=False)


@contextmanager
def _usage_errors() -> Iterator[None]:
    """Mistakes of the caller are told, not traced."""
    try:
        yield
    except InvalidDocumentError as error:
        show_invalid("the job", error.invalid, err)
        raise typer.Exit(1) from error
    except (DocumentError, KillError, ClusterError) as error:
        err.print(f"[red]cprjob:[/red] {escape(str(error))}", highlight=False, soft_wrap=True)
        raise typer.Exit(USAGE) from error
