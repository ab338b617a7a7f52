"""`cprjob bench scale`: how the costs of a job grow with its members, tables, features, batch and saves."""

from __future__ import annotations

import asyncio
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from cpr_contract import env
from cpr_operator.api.validate import parse_job
from cpr_operator.cli.command_errors import OptionError
from cpr_operator.cli.trainer_process import answer, run_role
from cpr_operator.cluster.local.cluster import LocalCluster
from cpr_operator.cluster.views import JobView
from cprjob_bench.bench_documents import SaveTimes, SaveTrials
from cprjob_bench.commands.bench_result import Result, bench_job, table
from cprjob_bench.commands.growth import LINEAR, Curve, Point
from cprjob_bench.commands.kills import write_sweep
from cprjob_bench.commands.machine_load import open_meters
from cprjob_bench.commands.member_scale import document_curves, members_of, pass_curve
from cprjob_bench.commands.systems import CprJob, JobRun
from cprjob_bench.commands.windows import measure
from cprjob_bench.options import ScaleCurve

_MIB = 1 << 20
#: More samples than any job trains.
_ENDLESS = 1 << 40
#: The file of samples of a job that sweeps.
SWEEP = "sweep.parquet"
_NO_SAVE_S = 24 * 3600
_DIM = 8
#: Bytes of a row with the state of its row-wise optimizer, in a shard and its tracker of changes.
_ROW_BYTES = 4 * (_DIM + 1) + 1
#: The part of the free memory that tables may take: the processes need the rest.
_OF_MEMORY = 0.7
_SAVE_REPEATS = 3
_SIZES: Mapping[ScaleCurve, tuple[str, ...]] = {
    ScaleCurve.SHARDS: ("2", "4", "8"),
    ScaleCurve.TRAINERS: ("1", "2", "4"),
    ScaleCurve.ROWS: ("1e5", "1e6", "1e7"),
    ScaleCurve.FEATURES: ("26", "104", "416"),
    ScaleCurve.BATCH: ("512", "2048", "8192"),
    ScaleCurve.DOCUMENTS: ("4x1", "16x4", "64x16", "256x64", "1024x256"),
    ScaleCurve.PASSES: ("18x20", "64x16", "256x64", "1024x256"),
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """The job of one measurement. rows: of each table; every feature has a table. batch: samples of a global step."""

    shards: int = 2
    trainers: int = 1
    rows: int = 100_000
    features: int = 26
    batch: int = 2048

    @property
    def table_bytes(self) -> int:
        """Bytes of all tables in the shards."""
        return self.features * self.rows * _ROW_BYTES


#: The job of the first size of each curve; the size replaces the field of the curve's name.
JOBS: Mapping[ScaleCurve, Sizes] = {
    ScaleCurve.SHARDS: Sizes(),
    ScaleCurve.TRAINERS: Sizes(),
    ScaleCurve.ROWS: Sizes(features=1),
    ScaleCurve.FEATURES: Sizes(rows=10_000),
    ScaleCurve.BATCH: Sizes(),
}
_SIZE_UNITS = {ScaleCurve.ROWS: "rows of a table", ScaleCurve.BATCH: "samples of a batch"}


@dataclass(frozen=True, slots=True)
class ScaleOptions:
    """Options of the command.

    sizes: each as CURVE=SIZE,... limit_mib: of a shard in the curve `saves`. seconds: the length of a job's window.
    """

    curves: tuple[ScaleCurve, ...]
    sizes: tuple[str, ...]
    limit_mib: int
    seconds: int
    json: bool


def sizes_of(options: ScaleOptions) -> dict[ScaleCurve, tuple[str, ...]]:
    """Return the sizes of each curve that is to be measured. Raises OptionError."""
    found = {**_SIZES, ScaleCurve.SAVES: tuple(str(each) for each in save_sizes(options.limit_mib))}
    for each in options.sizes:
        name, _, values = each.partition("=")
        if name not in set(ScaleCurve):
            raise OptionError(f"--sizes {each}: must be CURVE=SIZE,..., with one of {', '.join(ScaleCurve)}")
        found[ScaleCurve(name)] = tuple(values.split(","))
    for name in options.curves:
        for size in found[name]:
            if name in {ScaleCurve.DOCUMENTS, ScaleCurve.PASSES}:
                members_of(size)
            else:
                number_of(size)
    return {name: found[name] for name in dict.fromkeys(options.curves)}


def save_sizes(limit_mib: int) -> list[int]:
    """Return the sizes of the curve `saves` in MiB: each a quarter of the next, up to the limit."""
    return sorted({max(limit_mib >> shift, 1) for shift in (0, 2, 4, 6)})


def number_of(size: str) -> int:
    """Return a whole number above 0, as in 1000 or 1e3. Raises OptionError."""
    try:
        found = float(size)
    except ValueError:
        found = 0.0
    if found < 1 or not found.is_integer():
        raise OptionError(f"--sizes {size}: must be a whole number above 0, as in 1000 or 1e3")
    return int(found)


def document(sizes: Sizes, folder: Path, *, sweeps: bool = False) -> dict[str, Any]:
    """Return a CPRJob of these sizes that never saves, with its samples and its store in `folder`.

    sweeps: the samples are those of `write_sweep`, with any number of features and no repeated id. Synthetic ones have
    at most 26 features.

    The network is small and grows linearly with the features: DCN V2 with a fixed rank. The dot products of all pairs
    would grow with the square.
    """
    source: dict[str, Any] = {"format": "Synthetic"}
    of_table: dict[str, Any] = {"rows": sizes.rows}
    names = [f"c{place}" for place in range(sizes.features)]
    if sweeps:
        # One number and any number of ids, each the number of a row.
        columns = {"labels": ["label"], "numbers": ["x"], "categories": names}
        source = {"format": "Parquet", "uri": str(folder / SWEEP), "columns": columns}
        of_table["ids"] = "RowNumber"
    return bench_job(
        "bench-scale",
        model={
            "embeddingDim": _DIM,
            "bottomMlp": [_DIM],
            "topMlp": [16, 1],
            "interaction": {"kind": "DCNv2", "layers": 1, "rank": 8},
            "tables": [{"name": name, **of_table} for name in names],
            **({"numeric": 1} if sweeps else {}),
        },
        data={**source, "samples": _ENDLESS, "batchSize": sizes.batch},
        trainers={"replicas": sizes.trainers, "workers": 1},
        shards={"replicas": sizes.shards},
        snapshots={
            "store": {"endpoint": (folder / "store").as_uri(), "bucket": "saves"},
            "interval": {"mode": "Fixed", "seconds": _NO_SAVE_S},
        },
    )


def result(curves: Mapping[str, Curve], skipped: Sequence[str]) -> Result:
    """Return all curves, their exponents and marks; a table, and a line for each mark and each skipped size."""
    made = {
        name: {
            "size_unit": curve.size_unit,
            "cost_unit": curve.cost_unit,
            "points": [{"size": point.label, "cost": point.cost} for point in curve.points],
            "exponent": curve.exponent,
            "defect": curve.defect,
        }
        for name, curve in curves.items()
    }
    return Result({"linear": LINEAR, "curves": made, "skipped": list(skipped)}, _lines(curves, skipped))


def bench_scale(options: ScaleOptions, out: Console, err: Console, environment: Mapping[str, str]) -> None:
    """Measure all curves and print them; progress goes to `err`.

    Raises OptionError before anything runs, InvalidSpecError for sizes that no job can have, TrialError later.
    """
    curves: dict[str, Curve] = {}
    skipped: list[str] = []
    for name, sizes in sizes_of(options).items():
        err.print(f"{name}: {', '.join(sizes)}", highlight=False)
        if name is ScaleCurve.DOCUMENTS:
            curves |= document_curves(sizes)
        elif name is ScaleCurve.PASSES:
            curves |= pass_curve(sizes)
        elif name is ScaleCurve.SAVES:
            curves |= _save_curves(sizes, err, environment)
        else:
            curves[name] = asyncio.run(_job_curve(name, sizes, options.seconds, skipped, err, environment))
    result(curves, skipped).show(out, as_json=options.json)


def _lines(curves: Mapping[str, Curve], skipped: Sequence[str]) -> Iterator[str | Table]:
    shown = table("curve", "size", "cost", "of", "exponent")
    for name, curve in curves.items():
        for place, point in enumerate(curve.points):
            exponent = "" if place or curve.exponent is None else f"{curve.exponent:.2f}{'!' if curve.defect else ''}"
            shown.add_row("" if place else name, point.label, f"{point.cost:,.3f}", curve.cost_unit, exponent)
    yield shown
    yield from (f"! {name}: {curve.defect}" for name, curve in curves.items() if curve.defect)
    yield from skipped


class _UnsavedRun(JobRun):
    """A job that makes no save, which `measure` would wait for."""

    async def saves(self) -> int | None:
        """See `Run`."""
        return None


class _UnsavedJob(CprJob):
    """A CPRJob that makes no save."""

    def run_of(self, cluster: LocalCluster, job: JobView, folder: Path) -> JobRun:
        """See `CprJob`."""
        return _UnsavedRun(cluster, job, folder)


async def _job_curve(  # noqa: PLR0913, PLR0917 -- the curve, its sizes, the measurement and its progress
    name: ScaleCurve,
    sizes: Sequence[str],
    seconds: int,
    skipped: list[str],
    err: Console,
    environment: Mapping[str, str],
) -> Curve:
    """Return the processor time of all members: of a step for the curve `batch`, else of a sample.

    Processes may share processors, because their time counts and not the wall's. Sizes without memory go to `skipped`.
    """
    points = []
    environment = {**environment, "OMP_WAIT_POLICY": "PASSIVE"}
    with tempfile.TemporaryDirectory(prefix="cprjob-") as temporary:
        folder = Path(temporary)
        async with open_meters(environment, folder) as meters:
            for label in sizes:
                size = number_of(label)
                job = replace(JOBS[name], **{name.value: size})
                if job.table_bytes > (free := _OF_MEMORY * _free_bytes()):
                    need, have = job.table_bytes / _MIB, free / _MIB
                    skipped.append(f"{name} {label}: left out, tables of {need:,.0f} MiB exceed {have:,.0f} MiB")
                    continue
                place = folder / f"{name}-{size}"
                place.mkdir()
                if sweeps := name is ScaleCurve.FEATURES:
                    write_sweep(job.rows, job.features, place / SWEEP, environment)
                system = _UnsavedJob(document(job, place, sweeps=sweeps), environment, f"{name} {label}")
                window = await measure(system, place, seconds, meters, job.batch)
                step_ms = sum(window.cpu_ms[role] for role in (env.ROLE_TRAINER, env.ROLE_SHARD))
                points.append(Point(label, size, step_ms if name is ScaleCurve.BATCH else 1e3 * step_ms / job.batch))
                roles = ", ".join(f"{role} {ms:.2f}" for role, ms in window.cpu_ms.items())
                err.print(f"{name} {label}: processor ms per step: {roles}", highlight=False)
    unit = "processor ms of a step" if name is ScaleCurve.BATCH else "processor us of a sample"
    return Curve(_SIZE_UNITS.get(name, name.value), unit, tuple(points))


def _save_curves(sizes: Sequence[str], err: Console, environment: Mapping[str, str]) -> dict[str, Curve]:
    """Return the processor time of saving, restoring and verifying a shard of some MiB in a folder."""
    found: dict[str, list[Point]] = {"save": [], "restore": [], "verify": []}
    for label in sizes:
        mib = number_of(label)
        with tempfile.TemporaryDirectory(prefix="cprjob-") as folder:
            manifest = document(Sizes(shards=1, rows=mib * _MIB // (4 * (_DIM + 1)), features=1), Path(folder))
            job = parse_job(manifest, uid=f"bench-{uuid.uuid4().hex}")
            run = partial(run_role, environment=environment, package="cprjob_bench")
            times = answer(SaveTimes, run, "saves", job, SaveTrials(_SAVE_REPEATS))
        for name, timings in (("save", times.save), ("restore", times.restore), ("verify", times.verify)):
            cpu_s = median(each.cpu_s for each in timings)
            found[name].append(Point(label, mib, cpu_s))
            wall_s = median(each.wall_s for each in timings)
            err.print(f"{name} {label} MiB: {cpu_s:.3f} s of processor time, {wall_s:.3f} s", highlight=False)
    return {name: Curve("MiB", f"processor s of a {name}", tuple(points)) for name, points in found.items()}


def _free_bytes() -> int:
    """Return the memory that processes can still take. The system is Linux, as for the job's processes."""
    lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
