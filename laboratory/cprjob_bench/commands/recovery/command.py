"""The command: trains a job for each tier and size, kills its members in turn, and times each pause in a trace."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from rich.console import Console

from cpr_contract import env
from cpr_contract.trace import STEP_TRACE, TracedStep
from cpr_operator.api.status import TERMINAL_PHASES, FailureRecord, Status
from cpr_operator.cli.operating import open_cluster, operating
from cpr_operator.cli.trials import TrialError
from cpr_operator.cli.watch import running
from cpr_operator.cluster.local import LocalCluster
from cpr_operator.cluster.views import JobView, PodView
from cpr_operator.reconcile import Timing
from cprjob_bench.commands.recovery.design import TIERS, Tier, document, members
from cprjob_bench.commands.recovery.outage import pause_s
from cprjob_bench.commands.recovery.show import result
from cprjob_bench.options import RecoveryTier

_POLL_S = 0.1
_PATIENCE_S = 300.0
_WARM_UP_STEPS = 50
_TRACE = "steps.jsonl"


@dataclass(frozen=True, slots=True)
class RecoveryOptions:
    """What the command line asks for. sizes: MiB of each shard. runs: kills per tier and size."""

    tiers: tuple[RecoveryTier, ...]
    sizes: tuple[int, ...]
    runs: int
    json: bool


def bench_recovery(options: RecoveryOptions, out: Console, err: Console, environment: Mapping[str, str]) -> None:
    """Time every recovery and print percentiles; progress goes to `err`. Raises TrialError."""
    found: dict[str, dict[int, list[float]]] = {}
    for name in options.tiers:
        tier = TIERS[name]
        # A trainer holds no rows, so it does not matter how large the shards are.
        for size in options.sizes if tier.role == env.ROLE_SHARD else options.sizes[:1]:
            runs = asyncio.run(_measure(name, size, options.runs, err, environment))
            found.setdefault(name, {})[size] = runs
    result(found).show(out, as_json=options.json)


async def _measure(
    name: RecoveryTier, size_mib: int, runs: int, err: Console, environment: Mapping[str, str]
) -> list[float]:
    """Train one job, and kill its members `runs` times; seconds of each pause."""
    tier, found = TIERS[name], []
    with tempfile.TemporaryDirectory(prefix="cprjob-") as folder:
        place = Path(folder)
        trace = {"name": STEP_TRACE, "value": f"{env.SCRATCH_MOUNT}/{_TRACE}"}
        async with open_cluster(place, environment) as cluster:
            job = cluster.create_job(document(size_mib, tier.spares, place / "store", trace))
            async with operating(cluster, job, Timing()):  # passes as frequent as on a cluster
                run = _Run(cluster, job, place)
                await run.warm_up()
                for number in range(runs):
                    seconds, record = await run.time_one(tier, number % members(tier))
                    found.append(seconds)
                    words = f"{name}, {size_mib} MiB, run {number + 1}: {seconds:.2f} s ({record.kind}, {record.tier})"
                    err.print(words, highlight=False)
                    if number + 1 < runs:
                        await asyncio.sleep(tier.own_pace_s / members(tier))
    return found


class _Run:
    """A job that trains in `folder`."""

    def __init__(self, cluster: LocalCluster, job: JobView, folder: Path) -> None:
        self._cluster = cluster
        self._job = job
        self._trace = _Trace(folder)

    async def warm_up(self) -> None:
        """Wait for some steps, and for an anchor: without one a new pod has nothing to read."""
        async with _patience("the job did not train, or was not saved"):
            while True:
                await asyncio.sleep(_POLL_S)
                if len(self._trace.read()) >= _WARM_UP_STEPS and (await self._status()).anchors:
                    return

    async def time_one(self, tier: Tier, index: int) -> tuple[float, FailureRecord]:
        """Kill a member, and wait until training goes on and the failure is recorded. Returns the pause, in seconds."""
        known = {_key(each) for each in (await self._status()).failures}
        async with _patience(f"{tier.role}/{index} was not running, or no spare was warm"):
            pod = await self._wait_for(tier, index)
        killed_s = monotonic()
        self._cluster.signal_pod(self._job.namespace, pod.name, signal.SIGKILL, whole=tier.pod)
        async with _patience(f"training did not go on after {tier.role}/{index} was killed"):
            while True:
                await asyncio.sleep(_POLL_S)
                record = await self._recovered(known)
                seconds = pause_s(self._trace.read(), killed_s)
                if record is not None and seconds is not None:
                    return seconds, record

    async def _wait_for(self, tier: Tier, index: int) -> PodView:
        """The member's pod, once it runs and all spares are warm."""
        while True:
            warm = sum(spare.state == "Ready" for spare in (await self._status()).spares)
            pod = running(await self._cluster.list_pods(self._job), tier.role, index)
            if pod is not None and warm == tier.spares:
                return pod
            await asyncio.sleep(_POLL_S)

    async def _recovered(self, known: set[tuple[str, int, int, int]]) -> FailureRecord | None:
        """The failure that was not known, once everybody is at work again."""
        status = await self._status()
        records = [each for each in status.failures if _key(each) not in known]
        return records[0] if records and status.phase == "Running" else None

    async def _status(self) -> Status:
        status = Status.model_validate((await self._cluster.get_job(self._job.namespace, self._job.name)).status)
        if status.phase in TERMINAL_PHASES:
            raise TrialError(f"the job ended: {status.phase}")
        return status


class _Trace:
    """The ends of all steps of all incarnations of the trainer. What was read once is not read again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._ends_s: list[float] = []

    def read(self) -> Sequence[float]:
        """Seconds of the machine's monotonic clock, ascending."""
        for file in sorted(self._folder.glob(f"pods/*-{env.ROLE_TRAINER}-0-*/volumes/*/{_TRACE}")):
            with file.open("rb") as source:
                source.seek(self._read.get(file, 0))
                whole, newline, _ = source.read().rpartition(b"\n")
            self._read[file] = self._read.get(file, 0) + len(whole + newline)
            self._ends_s += [TracedStep.of_line(line).ended_s for line in whole.decode().splitlines()]
        return self._ends_s


@contextlib.asynccontextmanager
async def _patience(problem: str) -> AsyncIterator[None]:
    """Limit how long the context waits. Raises TrialError."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            yield
    except TimeoutError as error:
        raise TrialError(f"{problem} within {_PATIENCE_S:.0f} s") from error


def _key(record: FailureRecord) -> tuple[str, int, int, int]:
    return record.role, record.index, record.incarnation, record.life
