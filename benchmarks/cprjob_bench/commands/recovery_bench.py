"""`cprjob bench recovery`: the pause of training after the loss of a member, on this machine or on a cluster."""

from __future__ import annotations

import asyncio
import copy
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any

from rich.console import Console
from rich.table import Table

from cpr_contract import env
from cpr_contract.trace import STEP_TRACE
from cpr_operator.api.validate import parse_document
from cpr_operator.cli.command_options import ClusterOptions
from cpr_operator.cli.document import read_single
from cpr_operator.cli.run import open_cluster, operating
from cpr_operator.client import Client, NoObjectError
from cpr_operator.reconcile import Timing
from cprjob_bench.commands.bench_result import Result, bench_job, table
from cprjob_bench.commands.job_members import LocalMembers, PodMembers
from cprjob_bench.commands.killed_job import SHARDS, TIERS, TRACE, TRAINERS, KilledJob, Members, time_limit
from cprjob_bench.options import RecoveryTier

_JOB = "bench-recovery"
_DIM, _BATCH = 64, 512
#: Bytes of a row with the state of its row-wise optimizer.
_ROW_BYTES = 4 * (_DIM + 1)
_MIB = 2**20
#: More samples than any run trains.
_ENDLESS = 2**40
#: The minimum interval between saves, and MiB of a shard per second of it.
_SAVE_S, _SAVED_MIB_PER_S = 4, 64
#: Seconds of every run, by tier and by MiB of a shard.
Found = Mapping[str, Mapping[int, Sequence[float]]]
_TITLES = ("tier", "shard, MiB", "p50, s", "p99, s", "runs")
_PERCENTILES = 100
_POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class Base:
    """The fields of a job that depend on its place. templates: of its pods, by role."""

    image: str
    store: Mapping[str, Any]
    templates: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def here(cls, folder: Path) -> Base:
        """Return the fields for processes of this machine that save into a folder."""
        return cls("none", {"endpoint": folder.as_uri(), "bucket": "saves"})

    @classmethod
    def of(cls, job: Mapping[str, Any]) -> Base:
        """Return the fields of another CPRJob. Raises InvalidSpecError."""
        parse_document(job)
        spec = job["spec"]
        groups = {env.ROLE_TRAINER: spec["trainers"], env.ROLE_SHARD: spec["shards"]}
        templates = {role: group["template"] for role, group in groups.items() if "template" in group}
        return cls(spec["image"], spec["snapshots"]["store"], templates)

    def template(self, role: str) -> dict[str, Any]:
        """Return the template of a role's pods, with traces of steps."""
        made: dict[str, Any] = copy.deepcopy(dict(self.templates.get(role, {})))
        containers = made.setdefault("spec", {}).setdefault("containers", [])
        main = next((each for each in containers if each["name"] == env.MAIN_CONTAINER), None)
        if main is None:
            containers.append(main := {"name": env.MAIN_CONTAINER})
        main.setdefault("env", []).append({"name": STEP_TRACE, "value": f"{env.SCRATCH_MOUNT}/{TRACE}"})
        return made


@dataclass(frozen=True, slots=True)
class Series:
    """Kills of one tier in one job with shards of `size_mib` MiB."""

    tier: RecoveryTier
    size_mib: int
    runs: int

    def document(self, name: str, base: Base) -> dict[str, Any]:
        """Return the job."""
        return document(name, self.size_mib, TIERS[self.tier].spares, base)


@dataclass(frozen=True, slots=True)
class RecoveryOptions:
    """Options of the command.

    sizes: MiB of each shard. runs: kills per tier and size. cluster: a file with a CPRJob, the model of the bench's
    pods; None: processes of this machine.
    """

    tiers: tuple[RecoveryTier, ...]
    sizes: tuple[int, ...]
    runs: int
    json: bool
    cluster: Path | None = None


def document(name: str, size_mib: int, spares: int, base: Base) -> dict[str, Any]:
    """Return a CPRJob with a budget of 0, replay, and shards with `size_mib` MiB of rows and optimizer state."""
    job = bench_job(
        name,
        image=base.image,
        model={
            "embeddingDim": _DIM,
            "bottomMlp": [64, _DIM],
            "topMlp": [64, 1],
            "tables": [{"name": "rows", "rows": size_mib * _MIB * SHARDS // _ROW_BYTES}],
        },
        data={"format": "Synthetic", "samples": _ENDLESS, "batchSize": _BATCH},
        trainers={"replicas": TRAINERS, "workers": 1, "template": base.template(env.ROLE_TRAINER)},
        shards={"replicas": SHARDS, "spares": spares, "template": base.template(env.ROLE_SHARD)},
        recovery={"replay": {"mode": "Required", "memory": "1Gi"}},
        failurePolicy={"restartLimit": {"count": 1000}},
        snapshots={
            "store": dict(base.store),
            "interval": {"mode": "Fixed", "seconds": max(_SAVE_S, size_mib // _SAVED_MIB_PER_S)},
            "deleteWithJob": True,
        },
    )
    job["spec"]["accuracyBudget"] = {"portionOfLostSamples": 0}
    return job


def percentile(seconds: Sequence[float], place: int) -> float:
    """Return a percentile of the runs, interpolated; with a single run, its value."""
    if len(seconds) == 1:
        return seconds[0]
    return quantiles(seconds, n=_PERCENTILES, method="inclusive")[place - 1]


def result(found: Found) -> Result:
    """Return the percentiles and the number of runs, by tier and size."""
    return Result(_document(found), _lines(found))


def bench_recovery(
    options: RecoveryOptions, kube: ClusterOptions, out: Console, err: Console, environment: Mapping[str, str]
) -> None:
    """Time every recovery and print percentiles; progress goes to `err`.

    Raises TrialError if a job does not train or recover, DocumentError for a file that cannot be read,
    ClusterRequestError if the cluster refuses a request.
    """
    base = None if options.cluster is None else Base.of(read_single(options.cluster))
    found: dict[str, dict[int, list[float]]] = {}
    for tier in options.tiers:
        # Trainers have no rows, so one size is enough for them.
        for size in options.sizes if TIERS[tier].role == env.ROLE_SHARD else options.sizes[:1]:
            series = Series(tier, size, options.runs)
            if base is None:
                seconds = asyncio.run(_time_here(series, err, environment))
            else:
                with kube.client() as client:
                    seconds = asyncio.run(_time_on_cluster(series, err, client, base))
            found.setdefault(tier, {})[size] = seconds
    result(found).show(out, as_json=options.json)


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
            cells = (f"{percentile(runs, place):.2f}" for place in (50, 99))
            shown.add_row(tier, f"{size:,}", *cells, str(len(runs)))
    yield shown


async def _time_here(series: Series, err: Console, environment: Mapping[str, str]) -> list[float]:
    with tempfile.TemporaryDirectory(prefix="cprjob-") as folder:
        place = Path(folder)
        async with open_cluster(place, environment) as cluster:
            job = cluster.create_job(series.document(_JOB, Base.here(place / "store")))
            async with operating(cluster, job, Timing()):  # passes as frequent as on a cluster
                return await _time(series, err, LocalMembers(cluster, job, place))


async def _time_on_cluster(series: Series, err: Console, client: Client, base: Base) -> list[float]:
    manifest = series.document(f"{_JOB}-{series.tier.lower()}-{series.size_mib}", base)
    del manifest["metadata"]["namespace"]  # the user's
    job = (await asyncio.to_thread(client.submit, manifest)).name
    try:
        return await _time(series, err, PodMembers(client, job))
    finally:
        await asyncio.to_thread(client.delete, job)
        await _until_deleted(client, job)


async def _until_deleted(client: Client, job: str) -> None:
    """Wait until a deleted job has released its memory for the next one."""
    async with time_limit(f"{job} was not gone"):
        while True:
            try:
                await asyncio.to_thread(client.get, job)
            except NoObjectError:
                return
            await asyncio.sleep(_POLL_S)


async def _time(series: Series, err: Console, members: Members) -> list[float]:
    """Kill members of a job in turn and return the seconds of each pause."""
    tier, found, job = TIERS[series.tier], list[float](), KilledJob(members)
    await job.warm_up(job.has_anchor)
    for number in range(series.runs):
        pause, record = await job.outcome(await job.kill(tier, number % tier.members))
        found.append(pause.seconds)
        which = f"{series.tier}, {series.size_mib} MiB, run {number + 1}"
        err.print(f"{which}: {pause.seconds:.2f} s ({record.kind}, {record.tier})", highlight=False)
        if number + 1 < series.runs:
            await asyncio.sleep(tier.own_pace_s / tier.members)
    return found
