"""How a pod's process ends: exit codes, and what it leaves in its termination file."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class ExitCode(enum.IntEnum):
    """Exit codes of `python -m cpr_trainer`; 128+n is a signal, as everywhere."""

    OK = 0  # finished
    INTERNAL = 1  # an error nobody foresaw: retried within the restart limit
    FLUSHED = 10  # SIGTERM, and everything is saved: nothing is lost
    SUPERSEDED = 11  # a newer incarnation of the same member exists: stepped aside
    STORE_UNREACHABLE = 12  # the store does not answer, where nothing could wait for it: retried, and not counted
    BAD_SPEC = 20  # the spec cannot be trained: not retried
    BAD_DATA = 21  # the data is not what the spec says: not retried
    DAMAGED = 22  # nothing on the lineage verifies, the named anchor included: not retried
    CONTRACT = 23  # the operator speaks a contract version this image does not: not retried


#: Exit codes after which another attempt would end the same way.
PERMANENT = frozenset({ExitCode.BAD_SPEC, ExitCode.BAD_DATA, ExitCode.DAMAGED, ExitCode.CONTRACT})


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, for people: `reason` is one CamelCase word, `remedy` says what to do."""

    reason: str
    message: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Deleted:
    """What a cleanup that ended well has deleted. `unreadable` are keys it should have spared and could not read."""

    objects: int
    size_bytes: int
    unreadable: tuple[str, ...] = ()
