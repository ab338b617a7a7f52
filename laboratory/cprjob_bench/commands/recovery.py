"""`cprjob bench recovery`: how long training stands still when a member is lost, on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import tempfile
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import quantiles
from time import monotonic
from typing import Any

from rich.console import Console
from rich.table import Table

from cpr_contract import env
from cpr_contract.trace import STEP_TRACE, TracedStep
from cpr_operator.api.status import TERMINAL_PHASES, FailureRecord, Status
from cpr_operator.cli.asking import TrialError
from cpr_operator.cli.kills import Role
from cpr_operator.cli.run import open_cluster, operating
from cpr_operator.cli.watch import running
from cpr_operator.cluster.local import LocalCluster
from cpr_operator.cluster.views import JobView, PodView
from cpr_operator.reconcile import Timing
from cprjob_bench.commands.bench import Result, bench_job, table
from cprjob_bench.options import RecoveryTier

# The tiers of recovery: what is killed in each, and the job that is trained meanwhile. Pure.


SHARDS, TRAINERS = 2, 1
_DIM, _BATCH = 64, 512
#: Bytes of a row with the state of its row-wise optimizer.
_ROW_BYTES = 4 * (_DIM + 1)
_MIB = 2**20
#: More samples than any run trains.
_ENDLESS = 2**40
#: The interval between saves, at least, and MiB of a shard that one second of it is enough for.
_SAVE_S, _SAVED_MIB_PER_S = 4, 64


@dataclass(frozen=True, slots=True)
class Tier:
    """Of this role a member is killed: the process, or all of its pod.

    own_pace_s: seconds between two kills of one member. A keeper gives its pod up after three crashes in a minute.
    spares: that the job keeps; each kill waits until they are warm.
    """

    role: Role
    pod: bool
    own_pace_s: float
    spares: int = 0


TIERS: Mapping[RecoveryTier, Tier] = {
    RecoveryTier.IN_PLACE: Tier("shard", pod=False, own_pace_s=35.0),
    RecoveryTier.SPARE: Tier("shard", pod=True, own_pace_s=6.0, spares=1),
    RecoveryTier.NEW_POD: Tier("shard", pod=True, own_pace_s=6.0),
    RecoveryTier.TRAINER: Tier("trainer", pod=False, own_pace_s=35.0),
}


def members(tier: Tier) -> int:
    """How many members take turns in being killed."""
    return SHARDS if tier.role == "shard" else TRAINERS


def document(size_mib: int, spares: int, folder: Path, trace: Mapping[str, Any]) -> dict[str, Any]:
    """A CPRJob with a budget of 0 and replay, whose shards hold `size_mib` MiB of rows and optimizer state each.

    trace: the variable of the containers that names the trace of steps.
    """
    template = {"spec": {"containers": [{"name": "main", "env": [dict(trace)]}]}}
    job = bench_job(
        "bench-recovery",
        model={
            "embeddingDim": _DIM,
            "bottomMlp": [64, _DIM],
            "topMlp": [64, 1],
            "tables": [{"name": "rows", "rows": size_mib * _MIB * SHARDS // _ROW_BYTES}],
        },
        data={"format": "Synthetic", "samples": _ENDLESS, "batchSize": _BATCH},
        trainers={"replicas": TRAINERS, "template": template},
        shards={"replicas": SHARDS, "spares": spares, "template": template},
        recovery={"replay": {"mode": "Auto"}},
        failurePolicy={"restartLimit": {"count": 1000}},
        snapshots={
            "store": {"endpoint": f"file://{folder}", "bucket": "saves"},
            "interval": {"mode": "Fixed", "seconds": max(_SAVE_S, size_mib // _SAVED_MIB_PER_S)},
        },
    )
    job["spec"]["accuracyBudget"] = {"portionOfLostSamples": 0}
    return job


# How long training stood still after a kill. Pure.


#: So many steps must follow before a pause counts as the longest one.
FOLLOWING_STEPS = 20
_PERCENTILES = 100


def pause_s(ends_s: Sequence[float], killed_s: float) -> float | None:
    """Return the seconds from a kill, at `killed_s`, to the end of the step that ended the pause.

    ends_s: when each step ended, ascending. The pause is the longest time between two of them, the first of which may
    be the last before the kill. None while too few steps have followed it.
    """
    first = max(bisect_right(ends_s, killed_s) - 1, 0)
    pauses = [(later - earlier, place) for place, (earlier, later) in enumerate(pairwise(ends_s[first:]), first + 1)]
    if not pauses:
        return None
    _, resumed = max(pauses)
    return ends_s[resumed] - killed_s if len(ends_s) - resumed > FOLLOWING_STEPS else None


def percentile(seconds: Sequence[float], place: int) -> float:
    """Return a percentile of the runs, between those that are next to it. Of one run it is that run."""
    if len(seconds) == 1:
        return seconds[0]
    return quantiles(seconds, n=_PERCENTILES, method="inclusive")[place - 1]


# A job whose members are killed, and how long it stands still then.


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


# The result of the bench, for people and for programs.


#: Seconds of every run, by tier and by MiB of a shard.
Found = Mapping[str, Mapping[int, Sequence[float]]]
_TITLES = ("tier", "shard, MiB", "p50, s", "p99, s", "runs")


def result(found: Found) -> Result:
    """By tier and size the percentiles, and the number of runs."""
    return Result(_document(found), _lines(found))


def _document(found: Found) -> dict[str, Any]:
    return {
        tier: {
            str(size): {"p50_s": percentile(runs, 50), "p99_s": percentile(runs, 99), "runs": len(runs)}
            for size, runs in sizes.items()
        }
        for tier, sizes in found.items()
    }


def _lines(found: Found) -> Iterator[Table]:
    shown = table(*_TITLES)
    for tier, sizes in found.items():
        for size, runs in sizes.items():
            figures = (f"{percentile(runs, place):.2f}" for place in (50, 99))
            shown.add_row(tier, f"{size:,}", *figures, str(len(runs)))
    yield shown


# The command: trains a job for each tier and size, kills its members in turn, and times each pause in a trace.


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
        trace = {"name": STEP_TRACE, "value": f"{env.SCRATCH_MOUNT}/{TRACE}"}
        async with open_cluster(place, environment) as cluster:
            job = cluster.create_job(document(size_mib, tier.spares, place / "store", trace))
            async with operating(cluster, job, Timing()):  # passes as frequent as on a cluster
                run = KilledJob(cluster, job, place)
                await run.warm_up(run.has_anchor)
                for number in range(runs):
                    pause = await run.time_one(tier, number % members(tier))
                    found.append(pause.seconds)
                    how = f"{pause.record.kind}, {pause.record.tier}"
                    words = f"{name}, {size_mib} MiB, run {number + 1}: {pause.seconds:.2f} s ({how})"
                    err.print(words, highlight=False)
                    if number + 1 < runs:
                        await asyncio.sleep(tier.own_pace_s / members(tier))
    return found
