"""What the commands need that a plain install does not bring, and what to say where it is missing."""

from __future__ import annotations

from importlib.util import find_spec


class NeedError(RuntimeError):
    """A package that a command needs is not installed; the message has the remedy."""


def missing(package: str) -> str:
    """One line with the package and the remedy."""
    return f"the package {package} is not installed: pip install 'cprjob[local]' installs all that cprjob needs"


def check_trainer_image() -> None:
    """Raise NeedError unless the trainer image's packages are installed here, too."""
    if find_spec("torch") is None:
        raise NeedError(missing("torch"))
