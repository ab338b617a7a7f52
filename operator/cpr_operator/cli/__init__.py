"""`cprjob`: jobs on this machine, and checks of manifests."""

from __future__ import annotations

import sys
from importlib.util import find_spec

__all__ = ["main"]


def main() -> None:
    """The console entry: the commands, or one line that says what they lack."""
    try:
        from cpr_operator.cli.app import app  # noqa: PLC0415 -- a plain install has none of its packages

        app()  # a command imports its own code when it runs
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package == "cpr_operator":
            raise
        sys.exit(f"cprjob: {missing(package)}")


# What the commands need that a plain install does not bring, and what to say where it is missing.


class NeedError(RuntimeError):
    """A package that a command needs is not installed; the message has the remedy."""


def missing(package: str) -> str:
    """One line with the package and the remedy."""
    return f"the package {package} is not installed: pip install 'cprjob[local]' installs all that cprjob needs"


def check_trainer_image() -> None:
    """Raise NeedError unless the trainer image's packages are installed here, too."""
    if find_spec("torch") is None:
        raise NeedError(missing("torch"))
