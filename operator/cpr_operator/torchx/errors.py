"""What a command of TorchX ends with: one sentence, with the remedy."""

from __future__ import annotations

from torchx.specs.finder import ComponentValidationException


class SchedulerError(ComponentValidationException, SystemExit):  # type: ignore[misc]  # ships no types
    """What cannot be done, and what to do about it.

    `torchx run` reports the first of its bases. Other commands of TorchX catch nothing; they end by the second, without
    a traceback (but for `log`, whose threads print one before).
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = message
