"""Where commands print, and how they report the user's mistakes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.markup import escape

#: The usual exit code for a wrong command line.
USAGE = 2
#: The exit code that a shell gives a program that SIGINT ended.
INTERRUPTED = 130

#: A file has no width, so lines in it are not broken at 80 columns.
out = Console(width=None if sys.stdout.isatty() else 120)
err = Console(stderr=True)


@contextmanager
def usage_errors() -> Iterator[None]:
    """Print the user's mistakes, missing packages and what failed elsewhere without a traceback, then exit."""
    # Not before a command runs: they are most of what there is to import.
    from cpr_operator.api.validate import InvalidSpecError, InvalidStatusError
    from cpr_operator.cli.document import DocumentError, InvalidDocumentError
    from cpr_operator.cli.kills import KillError
    from cpr_operator.cli.needs import NeedError
    from cpr_operator.cli.options import OptionError
    from cpr_operator.cli.trials import TrialError
    from cpr_operator.cli.validate import show_invalid
    from cpr_operator.cli.where import AnswerError
    from cpr_operator.cluster.protocol import ClusterError

    try:
        yield
    except (InvalidDocumentError, InvalidSpecError) as error:
        show_invalid("the job", error.invalid, err)
        raise typer.Exit(1) from error
    except (AnswerError, InvalidStatusError, NeedError, TrialError) as error:
        _tell(error)
        raise typer.Exit(1) from error
    except (DocumentError, KillError, OptionError, ClusterError) as error:
        _tell(error)
        raise typer.Exit(USAGE) from error


@contextmanager
def interruptible() -> Iterator[None]:
    """End quietly at Ctrl-C, for commands that only look."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def _tell(error: Exception) -> None:
    err.print(f"[red]cprjob:[/red] {escape(str(error))}", highlight=False, soft_wrap=True)
