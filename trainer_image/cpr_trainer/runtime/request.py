"""What a command of `cprjob` asks of a process that it starts: one document, on one line of the standard input."""

from __future__ import annotations

from typing import TextIO, TypeVar

from cpr_contract.codec import ContractError, from_json
from cpr_trainer.runtime.environment import BadSpecError

T = TypeVar("T")


def read_request(cls: type[T], source: TextIO, command: str) -> T:
    """Read the request; `command` is who writes it, after `cprjob`. Raises BadSpecError.

    The end of the input is not waited for: where the process runs in a pod, it may never come.
    """
    try:
        return from_json(cls, source.readline())
    except ContractError as error:
        raise BadSpecError(f"The request cannot be read: {error}.", f"Start it by `cprjob {command}`.") from error
