"""Options that several commands share: the cluster, the job, and files to write."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from cpr_operator.cli.command_errors import ClusterRequestError, OptionError
from cpr_operator.cli.console import reported_errors

if TYPE_CHECKING:
    from cpr_operator.client import Client

#: The output formats of `cprjob get`.
ListingForm = Literal["table", "wide", "yaml", "json", "name"]
#: The job of a command that works with clusters, files and local runs.
Source = Annotated[
    str | None,
    typer.Argument(metavar="[cpr/NAME|FILE]", help="A job on the cluster, or a file with one and its status (YAML)."),
]
#: The prefix of the name of a job on a cluster. Any other name is a file; one in a folder `cpr` is `./cpr/NAME`.
_CLUSTER = "cpr/"
Workdir = Annotated[Path | None, typer.Option(help="Working folder of a local run, in place of a job's name.")]

Endpoint = Annotated[
    str | None, typer.Option(metavar="URL", help="Endpoint of an s3:// store, as http[s]://host:port.")
]


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """A cluster and a namespace in it. None is the default of the kubeconfig, as for kubectl."""

    kubeconfig: Annotated[Path | None, typer.Option(help="Kubeconfig file of the cluster.", dir_okay=False)] = None
    context: Annotated[str | None, typer.Option(help="Context of the kubeconfig.")] = None
    namespace: Annotated[str | None, typer.Option("--namespace", "-n", help="Namespace of the job.")] = None

    @property
    def text(self) -> str:
        """Return the options as text to append to a command; empty without options."""
        given = {"--kubeconfig": self.kubeconfig, "--context": self.context, "-n": self.namespace}
        return "".join(f" {name} {value}" for name, value in given.items() if value is not None)

    @contextlib.contextmanager
    def client(self) -> Iterator[Client]:
        """Open a client of the cluster. A request that fails raises ClusterRequestError."""
        from cpr_operator.client import Client, ClientError  # noqa: PLC0415 -- slow to import

        try:
            with Client(kubeconfig=self.kubeconfig, context=self.context, namespace=self.namespace) as client:
                yield client
        except ClientError as error:
            raise ClusterRequestError(str(error)) from error


def is_on_cluster(source: str | None) -> bool:
    """Return whether the source is the name of a job on a cluster."""
    return source is not None and source.startswith(_CLUSTER)


def job_name(text: str) -> str:
    """Return the name of a job on a cluster without the prefix `cpr/`."""
    return text.removeprefix(_CLUSTER)


def on_cluster(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of `ClusterOptions` to a command, as its parameter `kube`, and report its errors."""
    signature = inspect.signature(command, eval_str=True)
    own = [parameter for name, parameter in signature.parameters.items() if name != "kube"]
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in get_type_hints(ClusterOptions, include_extras=True).items()
    ]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        kube = ClusterOptions(**{option.name: given.pop(option.name) for option in options})
        with reported_errors():
            command(**given, kube=kube)

    run.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
    return run


def check_plot(path: Path) -> None:
    """Raise OptionError if no plot can be written to `path`. Call it before long work starts."""
    from matplotlib.backend_bases import FigureCanvasBase  # noqa: PLC0415 -- slow to import

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
    existing = next(each for each in (path, *path.absolute().parents) if each.exists())
    if not existing.is_dir():
        raise OptionError(f"{option} {path}: {existing} is a file; name a folder")
    if not os.access(existing, os.W_OK):
        raise OptionError(f"{option} {path}: nothing can be written in {existing}; name another folder")
