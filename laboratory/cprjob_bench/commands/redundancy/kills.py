"""Kills shards of a job in some mode, one after the other, and takes down what becomes of each."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from time import monotonic

from rich.console import Console

from cpr_contract import env
from cpr_contract.codec import ContractError, from_json
from cpr_contract.limits import MAX_MEMBERS, longest_report
from cpr_contract.reports import ShardReport
from cpr_operator.cli.asking import TrialError, why
from cpr_operator.cli.run import open_cluster, operating
from cpr_operator.cli.watch import running
from cpr_operator.cluster.local import LocalCluster
from cpr_operator.cluster.views import JobView
from cpr_operator.reconcile import Timing
from cprjob_bench.commands.recovery.design import TIERS
from cprjob_bench.commands.recovery.killing import KilledJob, patience
from cprjob_bench.commands.redundancy.contender import read_counts
from cprjob_bench.commands.redundancy.design import BATCH_SIZE, MODES, TABLES, killed_job, table_rows
from cprjob_bench.commands.redundancy.summary import Kill, rate_ratio
from cprjob_bench.documents.redundancy import Counts
from cprjob_bench.options import RecoveryTier, RedundancyMode

_POLL_S = 0.05
_REPORT_DEADLINE_S = 1.0
_PAUSE_S = 6.0
#: All of a pod is killed, and a warm spare becomes the shard: how long a pod takes to start is not asked here.
_TIER = TIERS[RecoveryTier.SPARE]
#: Steps that may be on their way when a shard is killed, and some more.
_UNDER_WAY = 4
#: Training is even by then.
_FEWEST_STEPS = 200


async def kill_shards(
    name: RedundancyMode, size_mib: int, runs: int, err: Console, environment: Mapping[str, str]
) -> list[Kill]:
    """Train one job whose shards are of so many MiB, and kill `runs` of them in turn."""
    mode, found = MODES[name], list[Kill]()
    with tempfile.TemporaryDirectory(prefix="cprjob-") as folder:
        place = Path(folder)
        document = killed_job(size_mib, mode, place / "samples.parquet", place / "store")
        shards = document["spec"]["shards"]["replicas"]
        rows = table_rows(size_mib, shards)
        await asyncio.to_thread(_write_samples, rows, place / "samples.parquet", environment)
        async with open_cluster(place, environment) as cluster:
            job = cluster.create_job(document)
            async with operating(cluster, job, Timing()):  # passes as frequent as on a cluster
                run, watch = KilledJob(cluster, job, place), _Shards(cluster, job, shards, place)
                safe = watch.protected if mode.data_shards else watch.saved
                await run.warm_up(lambda: _holds(safe, rows), max(-(-rows // BATCH_SIZE), _FEWEST_STEPS))
                for number in range(runs):
                    kill = await _kill_one(run, watch, number % shards, size_mib, parity=bool(mode.data_shards))
                    found.append(kill)
                    words = f"{name}, {size_mib} MiB, kill {number + 1}: {kill.seconds_to_next_step:.2f} s"
                    err.print(f"{words}, {kill.rebuild_gib_s:.2f} GiB/s ({kill.tier})", highlight=False)
                    if number + 1 < runs:
                        await asyncio.sleep(_PAUSE_S)
    return found


async def _holds(safe: Callable[[], Awaitable[int]], samples: int) -> bool:
    """Whether so many samples can be had again, which have changed every row."""
    return await safe() >= samples


async def _kill_one(run: KilledJob, watch: _Shards, index: int, size_mib: int, *, parity: bool) -> Kill:
    await run.wait_for(_TIER, index)
    incarnation = await watch.incarnation(index)
    steps = len(run.ends_s) + _UNDER_WAY
    again = asyncio.create_task(watch.protected_at(steps * BATCH_SIZE)) if parity else None
    pause = await run.time_one(_TIER, index)
    redundant_s = None if again is None else await again
    load_s, (counts,) = await watch.load_s(index, incarnation), await watch.counts(index)
    resumed_s = pause.killed_s + pause.seconds
    return Kill(
        seconds_to_next_step=pause.seconds,
        rebuild_gib_s=size_mib / 1024 / load_s,
        rebuild_gib_per_core_s=size_mib / 1024 / (counts.rebuild_cpu_us / 1e6) if counts.rebuild_cpu_us else None,
        redundant_again_s=None if redundant_s is None else redundant_s - pause.killed_s,
        throughput_while_rebuilding=(
            None if redundant_s is None else rate_ratio(run.ends_s, pause.killed_s, resumed_s, redundant_s)
        ),
        tier=pause.record.tier,
    )


class _Shards:
    """What the shards of a job report."""

    def __init__(self, cluster: LocalCluster, job: JobView, shards: int, folder: Path) -> None:
        self._folder = folder
        self._cluster = cluster
        self._job = job
        self._shards = shards

    async def protected(self) -> int:
        """The samples that parity holds of all shards; 0 while it does not hold all their rows."""
        return min([0 if each is None else each.protected_samples or 0 for each in await self._reports()])

    async def saved(self) -> int:
        """The samples that saves hold of all shards."""
        saves = [None if each is None else each.newest_save for each in await self._reports()]
        return min(0 if save is None else save.samples for save in saves)

    async def protected_at(self, samples: int) -> float:
        """Wait until parity holds so many samples of all shards; when that was, by the monotonic clock."""
        async with patience("parity did not hold all shards again"):
            while True:
                await asyncio.sleep(_POLL_S)
                if await self.protected() >= samples:
                    return monotonic()

    async def incarnation(self, index: int) -> int:
        """That of a shard that reports."""
        return (await self._wait_for(index, 0)).incarnation

    async def load_s(self, index: int, former: int) -> float:
        """How long the successor of an incarnation took to get its rows."""
        report = await self._wait_for(index, former)
        if not report.load_s:
            raise TrialError(f"shard {index} does not say how long it took to get its rows")
        return report.load_s

    async def counts(self, index: int) -> list[Counts]:
        """What a shard's pod has counted."""
        pod = running(await self._cluster.list_pods(self._job), env.ROLE_SHARD, index)
        return [] if pod is None else read_counts(self._folder, pod.name)

    async def _wait_for(self, index: int, former: int) -> ShardReport:
        async with patience(f"shard {index} did not report"):
            while True:
                report = await self._report(index)
                if report is not None and report.incarnation > former:
                    return report
                await asyncio.sleep(_POLL_S)

    async def _reports(self) -> list[ShardReport | None]:
        return [await self._report(index) for index in range(self._shards)]

    async def _report(self, index: int) -> ShardReport | None:
        pod = running(await self._cluster.list_pods(self._job), env.ROLE_SHARD, index)
        if pod is None:
            return None
        body = await self._cluster.fetch_report(pod, _REPORT_DEADLINE_S, longest_report(MAX_MEMBERS))
        try:
            return None if body is None else from_json(ShardReport, body)
        except ContractError:  # it has not begun to report
            return None


def _write_samples(rows: int, path: Path, environment: Mapping[str, str]) -> None:
    last_word, log = path.with_name("termination"), path.with_name("samples.txt")
    command = (sys.executable, "-m", "cprjob_bench", "sweep", "--rows", str(rows), "--tables", str(TABLES))
    with log.open("wb") as output:
        variables = {**environment, env.TERMINATION_FILE: str(last_word)}
        code = subprocess.call((*command, "--to", str(path)), env=variables, stderr=output)  # noqa: S603 -- our own program
    if code:
        raise TrialError(why(last_word, log, code))
