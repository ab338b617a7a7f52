"""Parses `--kill ROLE/INDEX@FRACTION[:SIGNAL|:POD]` and `ROLE/INDEX`, and selects the kills that are due."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import Literal, cast

from cpr_contract import env
from cpr_operator.cli.command_errors import OptionError

EXAMPLES = "shard/1@0.5, shard/1@0.5:POD, trainer/0@0.25:TERM"
Role = Literal["shard", "trainer"]
Target = Literal["shard", "trainer", "publisher"]
_POD = "POD"
_MEMBER = re.compile(r"(?P<role>shard|trainer)/(?P<index>\d+)")
_FORM = re.compile(
    r"(?P<role>shard|trainer|publisher)/(?P<index>\d+)@(?P<fraction>\d*\.?\d+)(?::(?P<signal>[A-Z0-9]+))?"
)


@dataclass(frozen=True, slots=True)
class Kill:
    """A signal to a member's process, or with `pod` to all of its pod, once `fraction` of all samples are trained.

    The publisher, which is no member, has one process.
    """

    role: Target
    index: int
    fraction: float
    number: signal.Signals = signal.SIGKILL
    pod: bool = False

    @property
    def target(self) -> str:
        """Return the member, as `shard/1`."""
        return f"{self.role}/{self.index}"


def parse_kill(text: str) -> Kill:
    """Parse one `--kill`. Raises OptionError."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise OptionError(f"{text!r} is not ROLE/INDEX@FRACTION[:SIGNAL|:POD], as in {EXAMPLES}")
    fraction = float(match["fraction"])
    if not 0 <= fraction < 1:
        raise OptionError(f"{text!r}: the fraction must be at least 0 and below 1")
    role, index = cast("Target", match["role"]), int(match["index"])
    name = match["signal"] or "KILL"
    if name == _POD:
        return Kill(role, index, fraction, pod=True)
    try:
        return Kill(role, index, fraction, signal.Signals[name if name.startswith("SIG") else f"SIG{name}"])
    except KeyError:
        raise OptionError(
            f"{text!r}: unknown signal {name}; use POD, KILL, TERM, STOP or another signal's name"
        ) from None


def parse_member(text: str) -> tuple[Role, int]:
    """Parse a member, as `shard/1`, into its role and its index. Raises OptionError."""
    match = _MEMBER.fullmatch(text)
    if match is None:
        raise OptionError(f"{text!r} is not ROLE/INDEX, as in shard/1 or trainer/0")
    return cast("Role", match["role"]), int(match["index"])


def check_targets(kills: tuple[Kill, ...], trainers: int, shards: int, publishers: int = 0) -> None:
    """Raise OptionError for a member that a job of this size does not have."""
    numbers = {env.ROLE_SHARD: shards, env.ROLE_TRAINER: trainers, env.ROLE_PUBLISHER: publishers}
    for kill in kills:
        members = numbers[kill.role]
        if kill.index >= members:
            raise OptionError(f"there is no {kill.target}: the job has {members} {kill.role}s, counted from 0")


def due(kills: tuple[Kill, ...], samples: int, total: int) -> tuple[tuple[Kill, ...], tuple[Kill, ...]]:
    """Split the kills into those that are due once `samples` of `total` (0 if unknown) are trained, and the others.

    At most one kill of each member is due at a time: a second one would hit the process that the first has killed.
    """
    now, later = dict[str, Kill](), list[Kill]()
    for kill in kills:
        if total == 0 or samples < kill.fraction * total or kill.target in now:
            later.append(kill)
        else:
            now[kill.target] = kill
    return tuple(now.values()), tuple(later)
