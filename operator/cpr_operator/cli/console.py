"""What commands have in common: options, which cluster they ask, where they print, and how they report mistakes."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment

from cpr_operator.api.terminal_text import printable

# What options of several commands have in common.


#: How `cprjob get` prints jobs.
ListingForm = Literal["table", "wide", "yaml", "json", "name"]


class OptionError(ValueError):
    """An option whose value the command cannot use."""


def check_plot(path: Path) -> None:
    """Raise OptionError if no plot can be written to `path`. Call it before long work starts."""
    from matplotlib.backend_bases import FigureCanvasBase

    endings = sorted(FigureCanvasBase.filetypes)
    if path.suffix.removeprefix(".") not in endings:
        raise OptionError(f"--plot {path}: the name must end in one of .{', .'.join(endings)}")
    check_file("--plot", path)


def check_file(option: str, path: Path) -> None:
    """Raise OptionError if no file can be written at `path`. Call it before long work starts."""
    if not path.parent.is_dir():
        raise OptionError(f"{option} {path}: the folder {path.parent} does not exist; create it, or name another file")
    if path.is_dir():
        raise OptionError(f"{option} {path}: this is a folder; name a file")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise OptionError(f"{option} {path}: it cannot be written; name another file")


def check_folder(option: str, path: Path) -> None:
    """Raise OptionError if no folder can be made at `path`, or nothing be written there."""
    there = next(each for each in (path, *path.absolute().parents) if each.exists())
    if not there.is_dir():
        raise OptionError(f"{option} {path}: {there} is a file; name a folder")
    if not os.access(there, os.W_OK):
        raise OptionError(f"{option} {path}: nothing can be written in {there}; name another folder")


# The options that say which cluster a command asks, and the client that asks it.


if TYPE_CHECKING:
    from cpr_operator.client import Client


class AnswerError(RuntimeError):
    """What the cluster refused, or why it cannot be asked; the message has the remedy."""


@dataclass(frozen=True, slots=True)
class Where:
    """A cluster, and a namespace in it. None: what the kubeconfig says, as kubectl does."""

    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str | None = None

    @property
    def options(self) -> str:
        """The same options, to be appended to a command that is printed; empty if there are none."""
        given = {"--kubeconfig": self.kubeconfig, "--context": self.context, "-n": self.namespace}
        return "".join(f" {name} {value}" for name, value in given.items() if value is not None)

    @contextlib.contextmanager
    def client(self) -> Iterator[Client]:
        """Ask that cluster. Raises AnswerError for every request that fails."""
        from cpr_operator.client import Client, ClientError

        try:
            with Client(kubeconfig=self.kubeconfig, context=self.context, namespace=self.namespace) as client:
                yield client
        except ClientError as error:
            raise AnswerError(str(error)) from error


_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("kubeconfig", Annotated[Path | None, typer.Option(help="Kubeconfig file of the cluster.", dir_okay=False)]),
    ("context", Annotated[str | None, typer.Option(help="Context of the kubeconfig.")]),
    ("namespace", Annotated[str | None, typer.Option("--namespace", "-n", help="Namespace of the job.")]),
)

#: The job of a command that works with clusters, files and local runs.
Source = Annotated[
    str | None,
    typer.Argument(metavar="[cpr/NAME|FILE]", help="A job on the cluster, or a file with one and its status (YAML)."),
]
Workdir = Annotated[Path | None, typer.Option(help="Working folder of a local run, in place of a job's name.")]


def on_cluster(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a `Where`, which it takes as its parameter `where`."""
    signature = inspect.signature(command, eval_str=True)
    own = [parameter for name, parameter in signature.parameters.items() if name != "where"]
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in _OPTIONS
    ]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        where = Where(**{name: given.pop(name) for name, _ in _OPTIONS})
        command(**given, where=where)

    run.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
    return run


#: The usual exit code for a wrong command line.
USAGE = 2
#: The exit code that a shell gives a program that SIGINT ended.
INTERRUPTED = 130


#: Escapes of JSON that Console would turn into characters which terminals obey; it leaves those of C0 alone.
_C1 = re.compile(r"\\u00(7f|[89][0-9a-f])")


class OutputClosedError(typer.Exit):
    """The reader of the output has closed its end of the pipe. The command ends silently with exit code 1."""

    def __init__(self) -> None:
        super().__init__(1)


class SafeConsole(Console):
    """Prints no control characters but its own, whatever text it is given."""

    def on_broken_pipe(self) -> None:
        """Print nothing further. Raises OutputClosedError."""
        self.silence()
        raise OutputClosedError

    def silence(self) -> None:
        """Print nothing further: the file cannot be written any more."""
        self.quiet = True
        with contextlib.suppress(OSError), Path(os.devnull).open("wb") as nothing:
            os.dup2(nothing.fileno(), self.file.fileno())  # Python flushes the file once more when it ends

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as Console does."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)

    def print_json(self, json: str | None = None, **options: Any) -> None:
        """Print JSON as Console does; characters that `render` drops are escaped."""
        super().print_json(json, **options | {"ensure_ascii": json is not None and _C1.search(json) is not None})


#: A file has no width, so lines in it are not broken at 80 columns.
out = SafeConsole(width=None if sys.stdout.isatty() else 120)
err = SafeConsole(stderr=True)


@contextlib.contextmanager
def usage_errors() -> Iterator[None]:
    """Print the user's mistakes, missing packages and what failed elsewhere without a traceback, then exit."""
    # Not before a command runs: they are most of what there is to import.
    from cpr_operator.api.validate import InvalidSpecError, InvalidStatusError
    from cpr_operator.cli import NeedError
    from cpr_operator.cli.asking import TrialError
    from cpr_operator.cli.console import AnswerError, OptionError
    from cpr_operator.cli.document import DocumentError, InvalidDocumentError
    from cpr_operator.cli.kills import KillError
    from cpr_operator.cli.plan import show_invalid
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


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """End quietly at Ctrl-C, for commands that only look."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def _tell(error: Exception) -> None:
    err.print(f"[red]cprjob:[/red] {escape(str(error))}", highlight=False, soft_wrap=True)
