"""The consoles that commands print to, and how they report errors."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Column, Table

from cpr_operator.api.terminal_text import printable
from cpr_operator.cli.command_errors import CommandLineError, UsageError

if TYPE_CHECKING:
    from cpr_operator.api.rules.rule import Invalid

#: The exit code that a shell gives a program that SIGINT ended.
INTERRUPTED = 130
#: Escapes in JSON that Console would convert to characters which terminals execute. It leaves those of C0 alone.
_C1 = re.compile(r"\\u00(7f|[89][0-9a-f])")


class OutputClosedError(typer.Exit):
    """The reader of the output has closed its end of the pipe. The command ends silently with exit code 1."""


class SafeConsole(Console):
    """A console that removes control characters from the text that it is given."""

    def on_broken_pipe(self) -> None:
        """Print nothing further. Raises OutputClosedError."""
        self.discard_output()
        raise OutputClosedError(1)

    def discard_output(self) -> None:
        """Print nothing further, because the file cannot be written any more."""
        self.quiet = True
        with contextlib.suppress(OSError), Path(os.devnull).open("wb") as nothing:
            os.dup2(nothing.fileno(), self.file.fileno())  # Python flushes the file once more when it ends

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as Console does, without control characters in the text."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)

    def print_json(self, json: str | None = None, **options: Any) -> None:
        """Print JSON as Console does; characters that `render` removes are escaped."""
        super().print_json(json, **options | {"ensure_ascii": json is not None and _C1.search(json) is not None})


#: Lines in a file are not broken at 80 columns.
out = SafeConsole(width=None if sys.stdout.isatty() else 120)
err = SafeConsole(stderr=True)


@contextlib.contextmanager
def reported_errors() -> Iterator[None]:
    """Print errors of users, clusters and other programs without a traceback, and exit."""
    # Imported when a command runs: the CLI's help does without these packages.
    from cpr_operator.api.validate import InvalidSpecError, InvalidStatusError  # noqa: PLC0415
    from cpr_operator.cluster.protocol import ClusterError  # noqa: PLC0415

    try:
        yield
    except InvalidSpecError as error:
        show_invalid("the job", error.invalid, err)
        raise typer.Exit(1) from error
    except (CommandLineError, InvalidStatusError, ClusterError) as error:
        err.print(f"[red]cprjob:[/red] {escape(str(error))}", highlight=False, soft_wrap=True)
        if isinstance(error, ClusterError):
            raise typer.Exit(UsageError.exit_code) from error
        raise typer.Exit(error.exit_code if isinstance(error, CommandLineError) else 1) from error


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Exit quietly at Ctrl-C, for commands that only read."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def show_invalid(title: str, invalid: tuple[Invalid, ...], console: Console) -> None:
    """Print each invalid field: its path, the problem, and the remedy."""
    console.print(f"[red]{escape(title)}[/red]: {len(invalid)} invalid field{'s' if len(invalid) > 1 else ''}")
    for each in invalid:
        console.print(f"  [bold]{escape(each.field or '(document)')}[/bold]: {escape(each.message)}")
        console.print(f"      {escape(each.remedy)}", style="dim")


def plain_table(*columns: Column | str, title: str | None = None) -> Table:
    """Return a table without lines, with these columns or titles of columns."""
    return Table(*columns, title=title, title_justify="left", box=None, pad_edge=False, header_style="bold dim")
