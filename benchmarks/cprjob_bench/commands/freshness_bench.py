"""`cprjob bench freshness`: the time from a click to the served vector of its id, and what publishing costs."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from uuid import uuid4

from rich.console import Console
from rich.table import Table

from cpr_contract.codec import from_json
from cpr_operator.cli.command_errors import TrialError
from cprjob_bench.bench_documents import CLICK_USERS, Freshness, Holds
from cprjob_bench.commands.bench_result import Result, bench_job, table
from cprjob_bench.commands.killed_job import time_limit
from cprjob_bench.commands.machine_load import open_meters
from cprjob_bench.commands.systems import CprJob, JobRun, Run
from cprjob_bench.commands.windows import Window, measure_alternately

PUBLISHED, UNPUBLISHED = "published", "unpublished"
#: Capacity of the table of items, dim of the vectors, samples of a step.
_ITEMS, _DIM, _BATCH = 1 << 17, 16, 256
#: Clicks in each file of the backlog, and files of it: more than any window trains.
_BACKLOG_ROWS, _BACKLOG_FILES = 20_000, 400
#: Seconds between two files of clicks, and clicks in each.
_EVERY_S, _CLICKS = 0.5, 64
_POLL_S = 0.2
_HOLD_UPDATES, _HOLD_CHANGED = 8, 0.02


@dataclass(frozen=True, slots=True)
class FreshnessOptions:
    """Options of the command. seconds: in which clicks are written. window_s, repeats: of each job's throughput.

    mib: size of the model whose lookups are timed while a follower updates it. broker: clicks are messages of a new
    topic on this broker of Kafka; empty: they are files.
    """

    seconds: int
    repeats: int
    window_s: int
    mib: int
    broker: str
    json: bool


def document(name: str, data: Path | str, folder: Path, *, publishes: bool) -> dict[str, Any]:
    """Return a CPRJob that saves each second, and may publish each second.

    data: the folder of the files that it follows, or the URI of a topic.
    """
    source = {"format": "CSV", "uri": f"{data}/"} if isinstance(data, Path) else {"format": "Kafka", "uri": data}
    job = bench_job(
        f"bench-{name}",
        model={
            "embeddingDim": _DIM,
            "bottomMlp": [64, _DIM],
            "topMlp": [64, 1],
            "numeric": 0,
            "tables": [
                {"name": "item", "rows": _ITEMS, "ids": "Dynamic"},
                {"name": "user", "rows": CLICK_USERS, "ids": "RowNumber"},
            ],
        },
        data=source
        | {
            "columns": {"labels": ["label"], "categories": ["item", "user"]},
            "follow": {"everySeconds": 1},
            "batchSize": _BATCH,
            "shuffleRows": 0,
        },
        trainers={"replicas": 1, "workers": 1},
        shards={"replicas": 2},
        snapshots={
            "store": {"endpoint": (folder / "store").as_uri(), "bucket": "saves"},
            "interval": {"mode": "Fixed", "seconds": 1},
            "denseIntervalSeconds": 1,
        },
    )
    if publishes:
        job["spec"]["publish"] = {"to": _chain(folder), "everySeconds": 1}
    return job


def bench_freshness(options: FreshnessOptions, out: Console, err: Console, environment: Mapping[str, str]) -> None:
    """Measure freshness, throughput and holds one after the other, and print them; progress goes to `err`.

    Raises TrialError.
    """
    environment = {**environment, "OMP_WAIT_POLICY": "PASSIVE"}
    result(*asyncio.run(_measure(options, err, environment))).show(out, as_json=options.json)


def result(fresh: Freshness, windows: Mapping[str, Sequence[Window]], holds: Holds) -> Result:
    """Return percentiles of the seconds to a served vector, the throughput ratio, and the longest hold of a lookup."""
    served, published = _percentiles(fresh.served_s), _percentiles(fresh.published_s)
    speeds = {name: median(each.samples_per_s for each in found) for name, found in windows.items()}
    pairs = zip(windows[PUBLISHED], windows[UNPUBLISHED], strict=True)
    ratio = median(mine.samples_per_s / its.samples_per_s for mine, its in pairs)
    cpu = {name: _cpu_us(found) for name, found in windows.items()}
    document = {
        "clicks": fresh.clicks,
        "not_served": fresh.clicks - len(fresh.served_s),
        "served_s": served,
        "published_s": published,
        "samples_per_s": speeds,
        "throughput_ratio": ratio,
        "cpu_us_per_sample": cpu,
        "hold": {
            "model_rows": 2 * holds.rows,
            "changed_rows": 2 * holds.changed,
            "update_s": median(holds.update_s),
            "longest_ms": 1e3 * max(holds.updating_s),
            "longest_idle_ms": 1e3 * max(holds.idle_s),
        },
    }
    return Result(document, _lines(document))


def _lines(found: Mapping[str, Any]) -> Iterator[str | Table]:
    shown = table("click to", "p50, s", "p95, s", "max, s")
    for name, key in (("published entry", "published_s"), ("served vector", "served_s")):
        shown.add_row(name, *(f"{value:.2f}" for value in found[key].values()))
    yield shown
    yield f"{found['clicks']:,} clicks, {found['not_served']:,} of them not served"
    speeds = found["samples_per_s"]
    ratio = f"{found['throughput_ratio']:.3f} of {speeds[UNPUBLISHED]:,.0f} samples/s without publishing"
    yield f"training with publishing: {speeds[PUBLISHED]:,.0f} samples/s, {ratio}"
    for name, roles in found["cpu_us_per_sample"].items():
        yield f"{name}, processor us per sample: " + ", ".join(f"{role} {us:.1f}" for role, us in roles.items())
    hold = found["hold"]
    yield (
        f"a follower of {hold['model_rows']:,} rows took {hold['update_s']:.2f} s for a delta of "
        f"{hold['changed_rows']:,}, and held a lookup for at most {hold['longest_ms']:.2f} ms "
        f"({hold['longest_idle_ms']:.2f} ms without an update)"
    )


def _percentiles(seconds: Sequence[float]) -> dict[str, float]:
    if len(seconds) < 2:  # noqa: PLR2004 -- quantiles need two
        raise TrialError("the follower served no vector of a written click")
    places = quantiles(seconds, n=100, method="inclusive")
    return {"p50": places[49], "p95": places[94], "max": max(seconds)}


def _cpu_us(windows: Sequence[Window]) -> dict[str, float]:
    """Return the processor time per sample in microseconds, by role: the median over windows."""
    roles = sorted({role for each in windows for role in each.cpu_ms})
    return {role: median(1e3 * each.cpu_ms.get(role, 0.0) / _BATCH for each in windows) for role in roles}


class _Job(CprJob):
    """A job with a name of its own in the results. If it publishes, it has started once a model is published."""

    def __init__(self, name: str, document: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        super().__init__(document, environment)
        self.name = name
        self._publishes = "publish" in document["spec"]

    @asynccontextmanager
    async def started(self, folder: Path) -> AsyncIterator[Run]:
        """See `System`."""
        async with super().started(folder) as run:
            assert isinstance(run, JobRun)  # noqa: S101 -- for mypy
            async with time_limit("no model was published"):
                while self._publishes and not await _published(run):  # noqa: ASYNC110 -- there is no event to wait for
                    await asyncio.sleep(_POLL_S)
            yield run


async def _published(run: JobRun) -> bool:
    """Return whether the operator has seen a published model."""
    return "published" in (await run.cluster.get_job(run.job.namespace, run.job.name)).status


async def _measure(
    options: FreshnessOptions, err: Console, environment: Mapping[str, str]
) -> tuple[Freshness, dict[str, list[Window]], Holds]:
    with tempfile.TemporaryDirectory(prefix="cprjob-") as temporary:
        folder = Path(temporary)
        fresh = await _freshness(options, folder / "fresh", environment)
        err.print(f"{len(fresh.served_s):,} of {fresh.clicks:,} clicks were served", highlight=False)
        data = folder / "backlog" / "data"
        data.mkdir(parents=True)
        await _run(environment, "clicks", "--rows", _BACKLOG_ROWS, "--to", data)
        for number in range(1, _BACKLOG_FILES):
            os.link(data / f"clicks-{0:06d}.csv", data / f"clicks-{number:06d}.csv")
        jobs = {name: document(name, data, folder, publishes=name == PUBLISHED) for name in (PUBLISHED, UNPUBLISHED)}
        systems = [_Job(name, job, environment) for name, job in jobs.items()]
        async with open_meters(environment, folder) as meters:
            windows = await measure_alternately(systems, folder, options.repeats, options.window_s, meters, _BATCH, err)
        (folder / "hold").mkdir()
        sizes = ("--mib", options.mib, "--updates", _HOLD_UPDATES, "--changed", _HOLD_CHANGED)
        holds = from_json(Holds, await _run(environment, "hold", "--folder", folder / "hold", *sizes))
    return fresh, windows, holds


async def _freshness(options: FreshnessOptions, folder: Path, environment: Mapping[str, str]) -> Freshness:
    """Run a job that publishes, and a process that writes its data and follows its models."""
    job = folder / "job"
    job.mkdir(parents=True)
    data: Path | str = folder / "data"
    if options.broker:
        data = f"kafka://{options.broker}/cprjob-bench-{uuid4().hex[:12]}"
    else:
        (folder / "data").mkdir()
    await _run(environment, "clicks", "--rows", _CLICKS, "--to", data)
    system = _Job(PUBLISHED, document("freshness", data, folder, publishes=True), environment)
    async with system.started(job) as run:
        arguments = ("--data", data, "--chain", _chain(folder), "--folder", folder / "followed")
        amounts = ("--seconds", options.seconds, "--every", _EVERY_S, "--rows", _CLICKS)
        found = from_json(Freshness, await _run(environment, "freshness", *arguments, *amounts))
        await run.check()
    return found


def _chain(folder: Path) -> str:
    return (folder / "chain").as_uri()


async def _run(environment: Mapping[str, str], role: str, *arguments: object) -> bytes:
    """Run a process of the benchmarks, and return its answer. Raises TrialError."""
    command = (sys.executable, "-m", "cprjob_bench", role, *map(str, arguments))
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe, env=dict(environment))
    try:
        written, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise TrialError(f"{role}: {errors.decode(errors='replace')[-2000:]}")
    return written
