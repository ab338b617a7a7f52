"""The command: reads the options, has the trainer image measure, prints the result."""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, cast, get_args

from rich.console import Console

from cpr_contract import env
from cpr_contract.codec import from_json
from cpr_contract.spec import Bits, JobSpec, Strategy
from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.api.validate import parse_spec, validate
from cpr_operator.cli.asking import ask_trainer_image, progress
from cpr_operator.cli.console import OptionError
from cpr_operator.cli.document import InvalidDocumentError
from cpr_operator.cluster.local.pod_folder import PortBlocks
from cprjob_bench.commands.job import bench_job
from cprjob_bench.commands.snapshot.show import result
from cprjob_bench.commands.snapshot.store import bench_store
from cprjob_bench.documents.snapshot import BenchReport, Figures, SnapshotBench

#: More samples than any bench trains.
_SAMPLES = 1 << 40
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class SnapshotOptions:
    """What the command line asks for. See `SnapshotBench` for repeats and window_s; the limit is on saves."""

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


def bench_snapshot(options: SnapshotOptions, out: Console, err: Console, environment: Mapping[str, str]) -> None:
    """Measure and print the result; progress goes to `err`.

    Raises OptionError and InvalidDocumentError before anything runs, TrialError later.
    """
    wanted = request(options)
    load_before = os.getloadavg()[0]
    with bench_store(options.store, options.endpoint) as store:
        figures = _measure(_job(options, store), wanted, err, environment)
    setting = {
        "rows": options.rows,
        "dim": options.dim,
        "store": options.store,
        "repeats": options.repeats,
        "limit_mib_s": options.limit_mib_s,
        "machine": {"cpus": os.cpu_count(), "load_before": load_before, "load_after": os.getloadavg()[0]},
    }
    result(setting, wanted.strategies, figures).show(out, as_json=options.json)


def request(options: SnapshotOptions) -> SnapshotBench:
    """The request to the trainer image. Raises OptionError for an unknown strategy or bit width."""
    _check("--strategy", options.strategies, get_args(Strategy))
    _check("--bits", options.bits, get_args(Bits))
    strategies = cast("tuple[Strategy, ...]", tuple(dict.fromkeys(options.strategies)))
    bits = cast("tuple[Bits, ...]", tuple(dict.fromkeys(options.bits)))
    return SnapshotBench(options.repeats, options.window_s, strategies, bits)


def _check(name: str, values: tuple[object, ...], choices: tuple[object, ...]) -> None:
    for value in values:
        if value not in choices:
            raise OptionError(f"{name} {value}: must be one of {', '.join(map(str, choices))}")


def _job(options: SnapshotOptions, store: dict[str, Any]) -> JobSpec:
    """A job of one shard, one trainer and one table. Raises InvalidDocumentError."""
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
    invalid = validate(document)
    if invalid:
        raise InvalidDocumentError(invalid)
    return to_job_spec(parse_spec(document["spec"]), uid=f"bench-{uuid.uuid4().hex}", name="bench")


def _measure(job: JobSpec, wanted: SnapshotBench, err: Console, environment: Mapping[str, str]) -> Figures:
    """Have a process of the trainer's code measure. Raises TrialError."""
    figures: Figures | None = None
    with (
        progress(err) as bar,
        closing(PortBlocks(random.Random())) as ports,
        closing(_ask(job, wanted, {**environment, env.PORT_BASE: str(ports.take())})) as lines,
    ):
        task = bar.add_task("filling a shard", total=None)
        for line in lines:
            report = from_json(BenchReport, line)
            bar.update(task, description=report.stage, completed=report.done, total=report.total)
            figures = report.figures
    assert figures is not None  # noqa: S101 -- the last report has them, or TrialError was raised
    return figures


def _ask(job: JobSpec, wanted: SnapshotBench, environment: Mapping[str, str]) -> Generator[bytes]:
    return ask_trainer_image("snapshot", job, wanted, environment, package="cprjob_bench")
