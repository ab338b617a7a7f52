"""A job with members that a bench kills one after the other, and the pause of training after each kill."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from time import monotonic
from typing import Protocol

from cpr_operator.api.status import TERMINAL_PHASES, FailureRecord, Status
from cpr_operator.cli.command_errors import TrialError
from cpr_operator.cli.kill_options import Role
from cprjob_bench.options import RecoveryTier

SHARDS, TRAINERS = 2, 1


@dataclass(frozen=True, slots=True)
class Tier:
    """The kills of one tier of recovery: members of `role`, each the process or all of its pod.

    own_pace_s: seconds between two kills of one member. A supervisor ends its pod after three crashes in a minute.
    spares: of the job; each kill waits until they are warm.
    """

    role: Role
    pod: bool
    own_pace_s: float
    spares: int = 0

    @property
    def members(self) -> int:
        """The number of members that are killed in turn."""
        return SHARDS if self.role == "shard" else TRAINERS


TIERS: Mapping[RecoveryTier, Tier] = {
    RecoveryTier.IN_PLACE: Tier("shard", pod=False, own_pace_s=35.0),
    RecoveryTier.SPARE: Tier("shard", pod=True, own_pace_s=6.0, spares=1),
    RecoveryTier.NEW_POD: Tier("shard", pod=True, own_pace_s=6.0),
    RecoveryTier.TRAINER: Tier("trainer", pod=False, own_pace_s=35.0),
}


#: Minimum of steps after a pause before it counts as the longest one.
FOLLOWING_STEPS = 20
#: Maximum of steps in flight when a member is killed, with a margin.
IN_FLIGHT_STEPS = 4


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause between the ends of two steps: the first at `began_s` of the trace's clock, the next `seconds` later."""

    began_s: float
    seconds: float


def longest_pause(ends_s: Sequence[float], known: int, recovered: int) -> Pause | None:
    """Return the longest time between the ends of two steps that a kill may have caused.

    ends_s: the end of each step, ascending. known: the number of steps read before the kill; the pause may begin at the
    last one. recovered: the number of steps read when the recovery was seen. A pause that begins IN_FLIGHT_STEPS steps
    after that, or later, has another cause. None while too few steps have followed the pause.
    """
    first = max(known - 1, 0)
    pauses = [(later - earlier, place) for place, (earlier, later) in enumerate(pairwise(ends_s[first:]), first)]
    pauses = [pause for pause in pauses if pause[1] < recovered + IN_FLIGHT_STEPS]
    if not pauses:
        return None
    seconds, place = max(pauses)
    return Pause(ends_s[place], seconds) if len(ends_s) - place - 1 > FOLLOWING_STEPS else None


@dataclass(frozen=True, slots=True)
class KillPoint:
    """A kill: its time by this process's monotonic clock, and the steps and recorded failures before it."""

    at_s: float
    steps: int
    failures: frozenset[tuple[str, int, int, int]]


#: The file of the trainer's trace, below the mount point of its scratch volume.
TRACE = "steps.jsonl"
_POLL_S = 0.1
_TIME_LIMIT_S = 300.0
_WARM_UP_STEPS = 50


class Members(Protocol):
    """The members of one job, on this machine or on a cluster."""

    async def status(self) -> Status:
        """Return the job's status."""

    async def runs(self, role: Role, index: int) -> bool:
        """Return whether a member's pod runs and is ready."""

    async def kill(self, tier: Tier, index: int) -> None:
        """Kill a member's process, or all of its pod, without a warning."""

    async def ends_s(self) -> Sequence[float]:
        """Return the end of each step, in seconds of the monotonic clock of the trainer's machine, ascending."""


class KilledJob:
    """A training job with members that are killed."""

    def __init__(self, members: Members) -> None:
        self._members = members

    async def warm_up(self, ready: Callable[[], Awaitable[bool]], steps: int = _WARM_UP_STEPS) -> None:
        """Wait for some steps, and until the job is `ready` to lose a member."""
        async with time_limit("the job did not train, or is not protected"):
            while True:
                await asyncio.sleep(_POLL_S)
                await self.status()
                if len(await self.ends_s()) >= steps and await ready():
                    return

    async def has_anchor(self) -> bool:
        """Return whether the job has an anchor, without which a new pod has nothing to restore."""
        return bool((await self.status()).anchors)

    async def ends_s(self) -> Sequence[float]:
        """Return the end of each step; see `Members`."""
        return await self._members.ends_s()

    async def kill(self, tier: Tier, index: int) -> KillPoint:
        """Kill a member once it runs and all spares are warm."""
        failures = frozenset(_key(each) for each in (await self.status()).failures)
        await self.wait_for(tier, index)
        point = KillPoint(monotonic(), len(await self.ends_s()), failures)
        await self._members.kill(tier, index)
        return point

    async def outcome(self, point: KillPoint) -> tuple[Pause, FailureRecord]:
        """Wait until training has resumed after a kill, and the failure is recorded."""
        recovered = None
        async with time_limit("training did not resume after a member was killed"):
            while True:
                await asyncio.sleep(_POLL_S)
                record = await self._recovered(point.failures)
                if record is None:
                    continue
                ends_s = await self.ends_s()
                recovered = len(ends_s) if recovered is None else recovered
                pause = longest_pause(ends_s, point.steps, recovered)
                if pause is not None:
                    return pause, record

    async def wait_for(self, tier: Tier, index: int) -> None:
        """Wait until the member's pod runs and all spares are warm."""
        async with time_limit(f"{tier.role}/{index} was not running, or no spare was warm"):
            while True:
                warm = sum(spare.state == "Ready" for spare in (await self.status()).spares)
                if warm == tier.spares and await self._members.runs(tier.role, index):
                    return
                await asyncio.sleep(_POLL_S)

    async def _recovered(self, before: frozenset[tuple[str, int, int, int]]) -> FailureRecord | None:
        """Return the new failure once the job is Running again."""
        status = await self.status()
        records = [each for each in status.failures if _key(each) not in before]
        return records[0] if records and status.phase == "Running" else None

    async def status(self) -> Status:
        """Return the job's status. Raises TrialError if it ended."""
        status = await self._members.status()
        if status.phase in TERMINAL_PHASES:
            raise TrialError(f"the job ended: {status.phase}")
        return status


@contextlib.asynccontextmanager
async def time_limit(problem: str) -> AsyncIterator[None]:
    """Limit the time of the context. Raises TrialError."""
    try:
        async with asyncio.timeout(_TIME_LIMIT_S):
            yield
    except TimeoutError as error:
        raise TrialError(f"{problem} within {_TIME_LIMIT_S:.0f} s") from error


def _key(record: FailureRecord) -> tuple[str, int, int, int]:
    return record.role, record.index, record.incarnation, record.process
