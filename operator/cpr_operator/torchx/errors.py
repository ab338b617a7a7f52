"""What a command of TorchX ends with: one sentence, with the remedy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torchx.specs.finder import ComponentValidationException

from cpr_operator.client import ClientError


class SchedulerError(ComponentValidationException, SystemExit):  # type: ignore[misc]  # ships no types
    """What cannot be done, and what to do about it.

    `torchx run` reports the first of its bases. Other commands of TorchX catch nothing; they end by the second, without
    a traceback (but for `log`, whose threads print one before).
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = message


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Raise what the client raises as TorchX takes it."""
    try:
        yield
    except ClientError as error:
        raise SchedulerError(str(error)) from None
