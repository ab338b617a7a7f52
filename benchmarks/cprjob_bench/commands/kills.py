"""Kills shards of a job in one mode, and reduces windows and kills to the metrics of the document."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import monotonic

from rich.console import Console

from cpr_contract import env
from cpr_contract.codec import ContractError, from_json
from cpr_contract.env import ROLE_SHARD, ROLE_TRAINER
from cpr_contract.limits import MAX_MEMBERS, max_report_bytes
from cpr_contract.reports import ShardReport
from cpr_operator.cli.command_errors import TrialError
from cpr_operator.cli.run import open_cluster, operating, running_pod
from cpr_operator.cli.trainer_process import failure_message
from cpr_operator.cluster.local.cluster import LocalCluster
from cpr_operator.cluster.views import JobView
from cpr_operator.reconcile import Timing
from cprjob_bench.bench_documents import Counts, ModeMetrics, Recovery
from cprjob_bench.commands.job_members import LocalMembers
from cprjob_bench.commands.killed_job import IN_FLIGHT_STEPS, TIERS, KilledJob, time_limit
from cprjob_bench.commands.modes import BATCH_SIZE, MODES, TABLES, killed_job, read_counts, table_rows
from cprjob_bench.commands.windows import Window, summarise
from cprjob_bench.options import RecoveryTier, RedundancyMode

#: The period before a kill that is the reference for the period after it.
BEFORE_S = 5.0
#: The minimum of steps for a rate.
_MIN_STEPS = 5
_NO_PARITY = "the mode has no parity: the shard serves once it has its rows"
_MANY_THREADS = "several threads load a save, and their CPU time is not counted"
_AT_ONCE = "parity covered all shards again before there were enough steps to count"
_POLL_S = 0.05
_REPORT_DEADLINE_S = 1.0
_PAUSE_S = 6.0
#: A kill ends the whole pod, and a warm spare becomes the shard, so that the start of a pod is not measured.
_TIER = TIERS[RecoveryTier.SPARE]
#: The speed of training is constant after these steps.
_WARM_STEPS = 200


@dataclass(frozen=True, slots=True)
class Kill:
    """The recovery after one kill; see `Recovery`. tier: from the operator's record."""

    seconds_to_next_step: float
    rebuild_gib_s: float
    rebuild_gib_per_core_s: float | None
    redundant_again_s: float | None
    throughput_while_rebuilding: float | None
    tier: str


def rate_ratio(ends_s: Sequence[float], killed_s: float, resumed_s: float, again_s: float) -> float | None:
    """Return the rate of steps from `resumed_s` to `again_s`, as a ratio to that of the seconds before `killed_s`.

    ends_s: the end of each step, ascending. None if either period has too few steps.
    """
    before = bisect_right(ends_s, killed_s) - bisect_left(ends_s, killed_s - BEFORE_S)
    after = bisect_right(ends_s, again_s) - bisect_right(ends_s, resumed_s)
    if min(before, after) < _MIN_STEPS:
        return None
    began_s = max(killed_s - BEFORE_S, ends_s[0])
    return after / (again_s - resumed_s) / (before / (killed_s - began_s))


def recovery_of(name: RedundancyMode, kills: Sequence[Kill]) -> Recovery:
    """Return the medians over the kills of a mode at one size; None in a mode without kills."""
    nothing = MODES[name].why_no_kill

    def middle(metric: Callable[[Kill], float | None]) -> float | None:
        known = [value for kill in kills if (value := metric(kill)) is not None]
        return median(known) if known else None

    metrics = {
        "seconds_to_next_step": middle(lambda kill: kill.seconds_to_next_step),
        "rebuild_gib_s": middle(lambda kill: kill.rebuild_gib_s),
        "rebuild_gib_per_core_s": middle(lambda kill: kill.rebuild_gib_per_core_s),
        "throughput_while_rebuilding": middle(lambda kill: kill.throughput_while_rebuilding),
        "redundant_again_s": middle(lambda kill: kill.redundant_again_s),
    }
    reason = nothing or (_AT_ONCE if MODES[name].data_shards else _NO_PARITY)
    why_null = {metric: reason for metric, value in metrics.items() if value is None}
    if not nothing and "rebuild_gib_per_core_s" in why_null:
        why_null["rebuild_gib_per_core_s"] = _MANY_THREADS
    return Recovery(**metrics, kills=len(kills), why_null=why_null)


def metrics_by_mode(
    windows: Mapping[RedundancyMode, Sequence[Window]],
    kills: Mapping[RedundancyMode, Mapping[int, Sequence[Kill]]],
    table_bytes: int,
) -> dict[str, ModeMetrics]:
    """Return the metrics of each mode. table_bytes: of all tables of the windows' job, with their optimizer's state."""
    none = windows[RedundancyMode.NONE]
    return {name.value: _mode_metrics(name, windows[name], none, kills.get(name, {}), table_bytes) for name in windows}


async def kill_shards(
    name: RedundancyMode, size_mib: int, runs: int, err: Console, environment: Mapping[str, str]
) -> list[Kill]:
    """Train one job with shards of `size_mib` MiB, and kill `runs` of them in turn."""
    mode, found = MODES[name], list[Kill]()
    with tempfile.TemporaryDirectory(prefix="cprjob-") as folder:
        place = Path(folder)
        document = killed_job(size_mib, mode, place / "samples.parquet", place / "store")
        shards = document["spec"]["shards"]["replicas"]
        rows = table_rows(size_mib, shards)
        await asyncio.to_thread(write_sweep, rows, TABLES, place / "samples.parquet", environment)
        async with open_cluster(place, environment) as cluster:
            job = cluster.create_job(document)
            async with operating(cluster, job, Timing()):  # passes as frequent as on a cluster
                run, watch = KilledJob(LocalMembers(cluster, job, place)), _Shards(cluster, job, shards, place)
                safe = watch.protected if mode.data_shards else watch.saved
                await run.warm_up(lambda: _holds(safe, rows), max(-(-rows // BATCH_SIZE), _WARM_STEPS))
                for number in range(runs):
                    kill = await _kill_one(run, watch, number % shards, size_mib, parity=bool(mode.data_shards))
                    found.append(kill)
                    message = f"{name}, {size_mib} MiB, kill {number + 1}: {kill.seconds_to_next_step:.2f} s"
                    err.print(f"{message}, {kill.rebuild_gib_s:.2f} GiB/s ({kill.tier})", highlight=False)
                    if number + 1 < runs:
                        await asyncio.sleep(_PAUSE_S)
    return found


def protected(reports: Sequence[ShardReport | None]) -> int:
    """Return the minimum of samples in parity over all shards; 0 while parity lacks rows."""
    return min(0 if report is None else report.protected_samples or 0 for report in reports)


def protected_again(reports: Sequence[ShardReport | None], samples: int, index: int, former: int) -> bool:
    """Return whether parity covers `samples` of all shards, and shard `index` is a successor of incarnation `former`.

    The number of samples is not sufficient, because it rises until the shard is killed.
    """
    successor = reports[index]
    return successor is not None and successor.incarnation > former and protected(reports) >= samples


class _Shards:
    """The reports of a job's shards."""

    def __init__(self, cluster: LocalCluster, job: JobView, shards: int, folder: Path) -> None:
        self._folder = folder
        self._cluster = cluster
        self._job = job
        self._shards = shards

    async def protected(self) -> int:
        """Return the minimum of samples in parity over all shards; 0 while parity lacks rows."""
        return protected(await self._reports())

    async def saved(self) -> int:
        """Return the minimum of saved samples over all shards."""
        saves = [None if each is None else each.newest_save for each in await self._reports()]
        return min(0 if save is None else save.samples for save in saves)

    async def protected_at(self, samples: int, index: int, former: int) -> float:
        """Wait for `protected_again` and return the time by the monotonic clock."""
        async with time_limit("parity did not cover all shards again"):
            while True:
                await asyncio.sleep(_POLL_S)
                if protected_again(await self._reports(), samples, index, former):
                    return monotonic()

    async def incarnation(self, index: int) -> int:
        """Return the incarnation of a shard, from its report."""
        return (await self._wait_for(index, 0)).incarnation

    async def load_s(self, index: int, former: int) -> float:
        """Return the seconds in which the successor of an incarnation loaded its rows."""
        report = await self._wait_for(index, former)
        if not report.load_s:
            raise TrialError(f"shard {index} does not report the time in which it loaded its rows")
        return report.load_s

    async def counts(self, index: int) -> list[Counts]:
        """Return the counts of a shard's pod."""
        pod = running_pod(await self._cluster.list_pods(self._job), env.ROLE_SHARD, index)
        return [] if pod is None else read_counts(self._folder, pod.name)

    async def _wait_for(self, index: int, former: int) -> ShardReport:
        async with time_limit(f"shard {index} did not report"):
            while True:
                report = await self._report(index)
                if report is not None and report.incarnation > former:
                    return report
                await asyncio.sleep(_POLL_S)

    async def _reports(self) -> list[ShardReport | None]:
        return [await self._report(index) for index in range(self._shards)]

    async def _report(self, index: int) -> ShardReport | None:
        pod = running_pod(await self._cluster.list_pods(self._job), env.ROLE_SHARD, index)
        if pod is None:
            return None
        body = await self._cluster.fetch_report(pod, _REPORT_DEADLINE_S, max_report_bytes(MAX_MEMBERS))
        try:
            return None if body is None else from_json(ShardReport, body)
        except ContractError:  # the shard does not report yet
            return None


def _mode_metrics(
    name: RedundancyMode,
    mine: Sequence[Window],
    none: Sequence[Window],
    kills: Mapping[int, Sequence[Kill]],
    table_bytes: int,
) -> ModeMetrics:
    summary = summarise(mine, none)
    parity, log = (median(window.kept_bytes[what] for window in mine) / table_bytes for what in ("parity", "log"))
    beyond = (_resident(window) - _resident(its) for window, its in zip(mine, none, strict=True))
    return ModeMetrics(
        data_shards=MODES[name].data_shards,
        samples_per_s=summary.samples_per_s,
        throughput_of_none=summary.ratio,
        processor_of_none=median(_processor_ms(one) / _processor_ms(its) for one, its in zip(mine, none, strict=True)),
        network_bytes_per_sample=median(window.sent_bytes_per_sample or 0.0 for window in mine),
        extra_memory=parity + log,
        parity_memory=parity,
        log_memory=log,
        resident_of_none=median(beyond) / table_bytes,
        recovery={str(size): recovery_of(name, found) for size, found in kills.items()},
    )


def _resident(window: Window) -> int:
    return sum(window.resident_bytes.values())


def _processor_ms(window: Window) -> float:
    """Return the CPU time of a step, in ms, without that of the operator and the bench."""
    return sum(spent for role, spent in window.cpu_ms.items() if role in {ROLE_TRAINER, ROLE_SHARD})


async def _holds(safe: Callable[[], Awaitable[int]], samples: int) -> bool:
    """Return whether `samples`, which have changed every row, are saved or protected."""
    return await safe() >= samples


async def _kill_one(run: KilledJob, watch: _Shards, index: int, size_mib: int, *, parity: bool) -> Kill:
    await run.wait_for(_TIER, index)
    incarnation = await watch.incarnation(index)
    point = await run.kill(_TIER, index)
    samples = (point.steps + IN_FLIGHT_STEPS) * BATCH_SIZE
    again = asyncio.create_task(watch.protected_at(samples, index, incarnation)) if parity else None
    pause, record = await run.outcome(point)
    redundant_s = None if again is None else await again
    load_s, (counts,) = await watch.load_s(index, incarnation), await watch.counts(index)
    resumed_s, ends_s = pause.began_s + pause.seconds, await run.ends_s()
    return Kill(
        seconds_to_next_step=pause.seconds,
        rebuild_gib_s=size_mib / 1024 / load_s,
        rebuild_gib_per_core_s=size_mib / 1024 / (counts.rebuild_cpu_us / 1e6) if counts.rebuild_cpu_us else None,
        redundant_again_s=None if redundant_s is None else redundant_s - point.at_s,
        throughput_while_rebuilding=(
            None if redundant_s is None else rate_ratio(ends_s, pause.began_s, resumed_s, redundant_s)
        ),
        tier=record.tier,
    )


def write_sweep(rows: int, tables: int, path: Path, environment: Mapping[str, str]) -> None:
    """Write samples that use each row of some tables once (`cprjob_bench.roles.samples`). Raises TrialError."""
    termination_file, log = path.with_name("termination"), path.with_name("samples.txt")
    command = (sys.executable, "-m", "cprjob_bench", "sweep", "--rows", str(rows), "--tables", str(tables))
    with log.open("wb") as output:
        variables = {**environment, env.TERMINATION_FILE: str(termination_file)}
        code = subprocess.call((*command, "--to", str(path)), env=variables, stderr=output)  # noqa: S603 -- our own program
    if code:
        raise TrialError(failure_message(termination_file, log, code))
