"""The errors of a trainer or a shard."""

from __future__ import annotations

from typing import ClassVar


def printable(text: str, chars: int = 80) -> str:
    """Return the beginning of a foreign text in one line, without characters that a terminal obeys."""
    return "".join(filter(str.isprintable, " ".join(text.split())))[:chars]


class TrainerError(Exception):
    """An error that a person can act on: a CamelCase `reason`, a message, and a `remedy`."""

    reason: ClassVar[str] = "TrainerError"

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message, remedy)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}"


class DataError(TrainerError):
    """The training data is missing, damaged, or not in the format that the job states."""

    reason = "BadData"


class ModelError(TrainerError):
    """The dense network cannot be built, is not a network, or does not fit what was saved."""

    reason = "BadModel"


class DivergedError(TrainerError):
    """Training diverged: further saves would be useless."""

    reason = "Diverged"


class AmbiguousError(TrainerError):
    """A store has several jobs or lineages, and the request names none."""

    reason = "Ambiguous"
