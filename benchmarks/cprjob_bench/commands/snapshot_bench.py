"""`cprjob bench snapshot`: the cost of a shard's saves on this machine, and their effect on training."""

from __future__ import annotations

import os
import random
import tempfile
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, cast, get_args
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table

from cpr_contract import env
from cpr_contract.choices import Bits, Strategy
from cpr_contract.codec import from_json
from cpr_contract.file_uris import is_file_uri, path_of
from cpr_contract.spec import JobSpec
from cpr_operator.api.validate import parse_job
from cpr_operator.cli.command_errors import OptionError
from cpr_operator.cli.trainer_process import progress_bar, run_role
from cpr_operator.cluster.local.pod_folder import PortBlocks
from cprjob_bench.bench_documents import BenchReport, Cut, PairedTiming, Round, SnapshotBench, SnapshotMetrics, Window
from cprjob_bench.commands.bench_result import Result, bench_job, table

_EXAMPLES = "file:///folder, or s3://bucket/prefix with --endpoint http[s]://host:port"
_GIB = 1 << 30
_MIB = 1 << 20
#: More samples than any bench trains.
_SAMPLES = 1 << 40


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed of saves or restores, and of a raw client; `of_raw` is the ratio of the two speeds."""

    gib_s: float
    raw_gib_s: float
    of_raw: float
    cpu_s_per_gib: float
    raw_cpu_s_per_gib: float


@dataclass(frozen=True, slots=True)
class Wait:
    """A percentile of training's waits in ms, without a save and during one."""

    idle: float
    saving: float
    ratio: float


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of the bench. extra_memory: bytes beyond the tables, None if the system does not report them."""

    save: Speed
    restore: Speed
    push_p50_ms: Wait
    push_p99_ms: Wait
    lookup_p50_ms: Wait
    lookup_p99_ms: Wait
    pause_ms: float
    extra_memory: int | None


@dataclass(frozen=True, slots=True)
class SnapshotOptions:
    """Options of the command. See `SnapshotBench` for repeats and window_s; the limit is on saves."""

    rows: int
    dim: int
    store: str | None
    endpoint: str | None
    strategies: tuple[str, ...]
    bits: tuple[int, ...]
    limit_mib_s: int
    repeats: int
    window_s: float
    json: bool


@contextmanager
def bench_store(uri: str | None, endpoint: str | None) -> Iterator[dict[str, Any]]:
    """Yield the store of a URI in the form of `snapshots.store`; without a URI, a temporary folder.

    Raises OptionError.
    """
    place = urlsplit(uri or "")
    if place.scheme == "s3":
        if not endpoint or not place.netloc:
            raise OptionError(f"--store {uri}: use {_EXAMPLES}")
        yield {"endpoint": endpoint, "bucket": place.netloc, "prefix": place.path.strip("/")}
        return
    if (uri and not is_file_uri(uri)) or endpoint:
        raise OptionError(f"--store {uri}: use {_EXAMPLES}")
    parent = path_of(uri) if uri else None
    if parent is not None and not parent.is_dir():
        raise OptionError(f"--store {uri}: the folder {parent} does not exist")
    with tempfile.TemporaryDirectory(prefix="cprjob-bench-", dir=parent) as folder:
        yield {"endpoint": Path(folder).resolve().as_uri(), "bucket": "saves"}


def summarise(metrics: SnapshotMetrics) -> Summary:
    """Reduce the metrics to medians over the repeats.

    Ratios are medians of the ratios of each pair, not ratios of medians, because a slow phase of the machine slows both
    halves of a pair.
    """

    def wait(percentile: Callable[[Window], float]) -> Wait:
        return _wait(metrics.rounds, percentile)

    return Summary(
        save=_speed(metrics.save, metrics.table_bytes),
        restore=_speed(metrics.restore, metrics.table_bytes),
        push_p50_ms=wait(lambda window: window.push.p50_ms),
        push_p99_ms=wait(lambda window: window.push.p99_ms),
        lookup_p50_ms=wait(lambda window: window.lookup.p50_ms),
        lookup_p99_ms=wait(lambda window: window.lookup.p99_ms),
        pause_ms=1e3 * median(each.pause_s for each in metrics.rounds),
        extra_memory=metrics.extra_memory_bytes,
    )


def result(setting: dict[str, Any], strategies: Sequence[Strategy], metrics: SnapshotMetrics) -> Result:
    """Return the setting of the bench and its metrics; three tables: speed, effect on training, and size."""
    summary = summarise(metrics)
    return Result(_document(setting, strategies, metrics, summary), _lines(strategies, metrics, summary))


def bench_snapshot(options: SnapshotOptions, out: Console, err: Console, environment: Mapping[str, str]) -> None:
    """Measure and print the result; progress goes to `err`.

    Raises OptionError and InvalidSpecError before anything runs, TrialError later.
    """
    bench = request_of(options)
    load_before = os.getloadavg()[0]
    with bench_store(options.store, options.endpoint) as store:
        metrics = _measure(_job(options, store), bench, err, environment)
    setting = {
        "rows": options.rows,
        "dim": options.dim,
        "store": options.store,
        "repeats": options.repeats,
        "limit_mib_s": options.limit_mib_s,
        "machine": {"cpus": os.cpu_count(), "load_before": load_before, "load_after": os.getloadavg()[0]},
    }
    result(setting, bench.strategies, metrics).show(out, as_json=options.json)


def request_of(options: SnapshotOptions) -> SnapshotBench:
    """Return the request to the trainer image. Raises OptionError for an unknown strategy or bit width."""
    _check("--strategy", options.strategies, get_args(Strategy))
    _check("--bits", options.bits, get_args(Bits))
    strategies = cast("tuple[Strategy, ...]", tuple(dict.fromkeys(options.strategies)))
    bits = cast("tuple[Bits, ...]", tuple(dict.fromkeys(options.bits)))
    return SnapshotBench(options.repeats, options.window_s, strategies, bits)


def _speed(timings: Sequence[PairedTiming], size_bytes: int) -> Speed:
    gib = size_bytes / _GIB
    return Speed(
        gib_s=median(gib / each.wall_s for each in timings),
        raw_gib_s=median(gib / each.raw_wall_s for each in timings),
        of_raw=median(each.raw_wall_s / each.wall_s for each in timings),
        cpu_s_per_gib=median(each.cpu_s / gib for each in timings),
        raw_cpu_s_per_gib=median(each.raw_cpu_s / gib for each in timings),
    )


def _wait(rounds: Sequence[Round], percentile: Callable[[Window], float]) -> Wait:
    pairs = [(percentile(each.idle), percentile(each.saving)) for each in rounds]
    return Wait(
        idle=median(idle for idle, _ in pairs),
        saving=median(saving for _, saving in pairs),
        ratio=median(saving / idle for idle, saving in pairs),
    )


def _document(
    setting: dict[str, Any], strategies: Sequence[Strategy], metrics: SnapshotMetrics, found: Summary
) -> dict[str, Any]:
    """Return the document; bit widths are keys, and therefore strings."""
    summary = asdict(found)
    extra = summary.pop("extra_memory")
    return {
        **setting,
        "shard_mib": metrics.table_bytes / _MIB,
        **summary,
        "extra_memory_mib": None if extra is None else extra / _MIB,
        "tracker_bytes": dict(zip(strategies, metrics.trackers, strict=True)),
        "rows_saved": {cut.strategy: cut.rows for cut in metrics.cuts},
        "bytes": _by_strategy(metrics.cuts, strategies, "size_bytes"),
        "seconds": _by_strategy(metrics.cuts, strategies, "wall_s"),
    }


def _lines(strategies: Sequence[Strategy], metrics: SnapshotMetrics, summary: Summary) -> Iterator[str | Table]:
    yield from (_speeds(summary), "", _waits(summary), "")
    yield from _costs(summary, metrics.table_bytes)
    yield from ("", _sizes(strategies, metrics))


def _by_strategy(cuts: Iterable[Cut], strategies: Sequence[Strategy], field: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {strategy: {} for strategy in strategies}
    for cut in cuts:
        found[cut.strategy][str(cut.bits)] = getattr(cut, field)
    return found


def _speeds(summary: Summary) -> Table:
    shown = table("training idle", "GiB/s", "raw client", "of raw", "CPU s/GiB", "raw client")
    rows: tuple[tuple[str, Speed], ...] = (("save", summary.save), ("restore", summary.restore))
    for name, speed in rows:
        shown.add_row(
            name,
            f"{speed.gib_s:.2f}",
            f"{speed.raw_gib_s:.2f}",
            f"{speed.of_raw:.0%}",
            f"{speed.cpu_s_per_gib:.2f}",
            f"{speed.raw_cpu_s_per_gib:.2f}",
        )
    return shown


def _waits(summary: Summary) -> Table:
    shown = table("training waits, ms", "no save", "during a save", "ratio")
    rows: tuple[tuple[str, Wait], ...] = (
        ("lookup, median", summary.lookup_p50_ms),
        ("lookup, p99", summary.lookup_p99_ms),
        ("push, median", summary.push_p50_ms),
        ("push, p99", summary.push_p99_ms),
    )
    for name, wait in rows:
        shown.add_row(name, f"{wait.idle:.2f}", f"{wait.saving:.2f}", f"{wait.ratio:.2f}")
    return shown


def _costs(summary: Summary, table_bytes: int) -> Iterable[str]:
    yield f"Pause at a cut: {summary.pause_ms:.2f} ms."
    if summary.extra_memory is not None:
        portion = summary.extra_memory / table_bytes
        yield f"Memory beyond the tables: {summary.extra_memory / _MIB:.1f} MiB, {portion:.1%} of them."


def _sizes(strategies: Sequence[Strategy], metrics: SnapshotMetrics) -> Table:
    bits = sorted({cut.bits for cut in metrics.cuts}, reverse=True)
    sizes = _by_strategy(metrics.cuts, strategies, "size_bytes")
    rows = {cut.strategy: cut.rows for cut in metrics.cuts}
    shown = table("one save, MiB", "rows", *(f"{width} bits" for width in bits), "tracker, MiB")
    for strategy, tracker_bytes in zip(strategies, metrics.trackers, strict=True):
        weights = (f"{sizes[strategy][str(width)] / _MIB:.1f}" for width in bits)
        shown.add_row(strategy, f"{rows[strategy]:,}", *weights, f"{tracker_bytes / _MIB:.1f}")
    return shown


def _check(name: str, values: tuple[object, ...], choices: tuple[object, ...]) -> None:
    for value in values:
        if value not in choices:
            raise OptionError(f"{name} {value}: must be one of {', '.join(map(str, choices))}")


def _job(options: SnapshotOptions, store: dict[str, Any]) -> JobSpec:
    """Return a job of one shard, one trainer and one table. Raises InvalidSpecError."""
    document = bench_job(
        "bench",
        model={
            "embeddingDim": options.dim,
            "bottomMlp": [options.dim],
            "topMlp": [1],
            "tables": [{"name": "table", "rows": options.rows}],
        },
        data={"format": "Synthetic", "samples": _SAMPLES, "batchSize": 1},
        shards={"replicas": 1},
        snapshots={"store": store, "maxBytesPerSecond": options.limit_mib_s * _MIB},
    )
    return parse_job(document, uid=f"bench-{uuid.uuid4().hex}")


def _measure(job: JobSpec, bench: SnapshotBench, err: Console, environment: Mapping[str, str]) -> SnapshotMetrics:
    """Measure in a process of the trainer's code. Raises TrialError."""
    metrics: SnapshotMetrics | None = None
    with (
        progress_bar(err) as bar,
        closing(PortBlocks(random.Random())) as ports,
        closing(_run_role(job, bench, {**environment, env.PORT_BASE: str(ports.take())})) as lines,
    ):
        task = bar.add_task("filling a shard", total=None)
        for line in lines:
            report = from_json(BenchReport, line)
            bar.update(task, description=report.stage, completed=report.done, total=report.total)
            metrics = report.figures
    assert metrics is not None  # noqa: S101 -- the last report has them, or TrialError was raised
    return metrics


def _run_role(job: JobSpec, bench: SnapshotBench, environment: Mapping[str, str]) -> Generator[bytes]:
    return run_role("snapshot", job, bench, environment, package="cprjob_bench")
