"""A job whose members are killed, and how long it stands still then."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from cpr_contract import env
from cpr_contract.env import TracedStep
from cpr_operator.api.status import TERMINAL_PHASES, FailureRecord, Status
from cpr_operator.cli.asking import TrialError
from cpr_operator.cli.watch import running
from cpr_operator.cluster.local import LocalCluster
from cpr_operator.cluster.views import JobView, PodView
from cprjob_bench.commands.recovery.design import Tier
from cprjob_bench.commands.recovery.outage import pause_s

#: The file of a trainer's trace, below the mount point of its volume.
TRACE = "steps.jsonl"
_POLL_S = 0.1
_PATIENCE_S = 300.0
_WARM_UP_STEPS = 50


@dataclass(frozen=True, slots=True)
class Pause:
    """A member was killed at `killed_s` of the monotonic clock; so many seconds later the first step after it ended."""

    killed_s: float
    seconds: float
    record: FailureRecord


class KilledJob:
    """A job that trains in `folder`, whose members are killed."""

    def __init__(self, cluster: LocalCluster, job: JobView, folder: Path) -> None:
        self._cluster = cluster
        self._job = job
        self._trace = _Ends(folder)

    async def warm_up(self, ready: Callable[[], Awaitable[bool]], steps: int = _WARM_UP_STEPS) -> None:
        """Wait for some steps, and until the job is `ready` to lose a member."""
        async with patience("the job did not train, or is not protected"):
            while True:
                await asyncio.sleep(_POLL_S)
                if len(self._trace.read()) >= steps and await ready():
                    return

    async def has_anchor(self) -> bool:
        """Whether the job was saved: without an anchor a new pod has nothing to read."""
        return bool((await self.status()).anchors)

    @property
    def ends_s(self) -> Sequence[float]:
        """When each step ended, in seconds of the machine's monotonic clock, ascending."""
        return self._trace.read()

    async def time_one(self, tier: Tier, index: int) -> Pause:
        """Kill a member, and wait until training goes on and the failure is recorded."""
        known = {_key(each) for each in (await self.status()).failures}
        pod = await self.wait_for(tier, index)
        killed_s = monotonic()
        self._cluster.signal_pod(self._job.namespace, pod.name, signal.SIGKILL, whole=tier.pod)
        async with patience(f"training did not go on after {tier.role}/{index} was killed"):
            while True:
                await asyncio.sleep(_POLL_S)
                record = await self._recovered(known)
                seconds = pause_s(self._trace.read(), killed_s)
                if record is not None and seconds is not None:
                    return Pause(killed_s, seconds, record)

    async def wait_for(self, tier: Tier, index: int) -> PodView:
        """The member's pod, once it runs and all spares are warm."""
        async with patience(f"{tier.role}/{index} was not running, or no spare was warm"):
            while True:
                warm = sum(spare.state == "Ready" for spare in (await self.status()).spares)
                pod = running(await self._cluster.list_pods(self._job), tier.role, index)
                if pod is not None and warm == tier.spares:
                    return pod
                await asyncio.sleep(_POLL_S)

    async def _recovered(self, known: set[tuple[str, int, int, int]]) -> FailureRecord | None:
        """The failure that was not known, once everybody is at work again."""
        status = await self.status()
        records = [each for each in status.failures if _key(each) not in known]
        return records[0] if records and status.phase == "Running" else None

    async def status(self) -> Status:
        """The job's status. Raises TrialError if it ended."""
        status = Status.model_validate((await self._cluster.get_job(self._job.namespace, self._job.name)).status)
        if status.phase in TERMINAL_PHASES:
            raise TrialError(f"the job ended: {status.phase}")
        return status


class _Ends:
    """The ends of all steps of all incarnations of the trainer. What was read once is not read again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._ends_s: list[float] = []

    def read(self) -> Sequence[float]:
        """Seconds of the machine's monotonic clock, ascending."""
        for file in sorted(self._folder.glob(f"pods/*-{env.ROLE_TRAINER}-0-*/volumes/*/{TRACE}")):
            with file.open("rb") as source:
                source.seek(self._read.get(file, 0))
                whole, newline, _ = source.read().rpartition(b"\n")
            self._read[file] = self._read.get(file, 0) + len(whole + newline)
            self._ends_s += [TracedStep.of_line(line).ended_s for line in whole.decode().splitlines()]
        return self._ends_s


@contextlib.asynccontextmanager
async def patience(problem: str) -> AsyncIterator[None]:
    """Limit how long the context waits. Raises TrialError."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            yield
    except TimeoutError as error:
        raise TrialError(f"{problem} within {_PATIENCE_S:.0f} s") from error


def _key(record: FailureRecord) -> tuple[str, int, int, int]:
    return record.role, record.index, record.incarnation, record.life
