"""The options that say which cluster a command asks, and the client that asks it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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

    @contextmanager
    def client(self) -> Iterator[Client]:
        """Ask that cluster. Raises AnswerError for every request that fails."""
        from cpr_operator.client import Client, ClientError  # noqa: PLC0415 -- most commands ask no cluster

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
