"""`cprjob bench train`: the training speed of CPRJob on this machine, compared with other programs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from cpr_contract import env
from cpr_contract.choices import Device, Precision
from cpr_contract.codec import to_json
from cpr_contract.processor import is_emulated, read_cpuinfo
from cpr_contract.spec import JobSpec
from cpr_operator.api.validate import parse_job
from cpr_operator.cli.command_errors import OptionError, TrialError
from cpr_operator.cli.trainer_process import failure_message
from cprjob_bench.commands.bench_result import Result, bench_job, table
from cprjob_bench.commands.machine_load import open_meters
from cprjob_bench.commands.systems import CPRJOB, ENCRYPTED, SINGLE, CprJob, Program, System, baseline_commands, singles
from cprjob_bench.commands.windows import Summary, Window, measure_alternately, summarise
from cprjob_bench.options import TrainPreset
from cprjob_bench.roles.product_shapes import products_of

BATCH_SIZE = 2048
#: More samples than any window trains, so that no run finishes.
_ENDLESS = 2**40
#: Distinct values of the categorical columns of Criteo's two data sets, the second with at most 40 M a column.
_KAGGLE = (
    "1460 583 10131227 2202608 305 24 12517 633 3 93145 5683 8351593 3194 27 14992 5461306 10 5652 2173 4 7046547 \
    18 15 286181 105 142572"
)
_TERABYTE = (
    "39884406 39043 17289 7420 20263 3 7120 1543 63 38532951 2953546 403346 10 2208 11938 155 4 976 14 39979771 \
    25641295 39664984 585935 12972 108 36"
)
_MIB = 2**20
_TITLES = ("system", "samples/s", "of single", "of bound", "step p50, ms", "p99, ms", "resident, MiB")
_SAMPLES = 100_000
#: Intervals between cuts in a window: one, and time for its save.
_INTERVALS_IN_WINDOW = 1.5


@dataclass(frozen=True, slots=True)
class _Model:
    dim: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    columns: str


_MODELS: Mapping[TrainPreset, _Model] = {
    TrainPreset.KAGGLE: _Model(16, (512, 256, 64, 16), (512, 256, 1), _KAGGLE),
    TrainPreset.TERABYTE: _Model(64, (512, 256, 64), (512, 512, 256, 1), _TERABYTE),
    TrainPreset.MLPERF: _Model(128, (512, 256, 128), (1024, 1024, 512, 256, 1), _TERABYTE),
}


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """Options of the command.

    rows: the maximum number per table. seconds: the length of a window. baselines: other programs, as NAME=COMMAND.
    workers: None: their number is to be measured. encrypted: the job is measured with TLS, too. device: of the dense
    network, in all systems. entrypoint: of another network than that of the preset, see `ModelSpec.entrypoint`.
    """

    preset: TrainPreset
    rows: int
    trainers: int
    shards: int
    workers: int | None
    precision: Precision
    repeats: int
    seconds: int
    json: bool
    baselines: tuple[str, ...] = ()
    encrypted: bool = False
    device: Device = "cpu"
    entrypoint: str | None = None


def document(  # noqa: PLR0913 -- one parameter per part of the job
    preset: TrainPreset,
    *,
    rows: int,
    trainers: int,
    shards: int,
    workers: int,
    precision: Precision,
    samples: Path,
    store: Path,
    interval_s: int,
    device: Device = "cpu",
    entrypoint: str | None = None,
) -> dict[str, Any]:
    """Return a CPRJob of this model over the file `samples`, with replay and a cut every `interval_s` seconds.

    rows: the maximum per table. entrypoint: of another network over the same tables.
    """
    model = _MODELS[preset]
    tables = [
        {"name": f"c{place}", "rows": min(int(values), rows)}
        for place, values in enumerate(model.columns.split(), start=1)
    ]
    return bench_job(
        f"bench-{preset}",
        model={
            "embeddingDim": model.dim,
            "bottomMlp": list(model.bottom),
            "topMlp": list(model.top),
            "tables": tables,
            **({} if entrypoint is None else {"entrypoint": entrypoint}),
        },
        data={"format": "Criteo", "uri": str(samples), "samples": _ENDLESS, "batchSize": BATCH_SIZE},
        trainers={"replicas": trainers, "workers": workers, "precision": precision, "device": device},
        shards={"replicas": shards},
        snapshots={
            "store": {"endpoint": store.as_uri(), "bucket": "saves"},
            "interval": {"mode": "Fixed", "seconds": interval_s},
        },
        recovery={"replay": {"mode": "Required"}},
    )


def summaries(windows: Mapping[str, Sequence[Window]]) -> dict[str, Summary]:
    """Return the summary of each system's windows."""
    return {name: summarise(found, windows[SINGLE]) for name, found in windows.items()}


def result(setting: Mapping[str, Any], windows: Mapping[str, Sequence[Window]]) -> Result:
    """Return the setting, the medians, and every window; a line for each system, then the stages of a step."""
    found = summaries(windows)
    return Result(_document(setting, windows, found), _lines(setting, found))


def bench_train(options: TrainOptions, out: Console, err: Console, environment: Mapping[str, str]) -> None:
    """Run all systems in turn and print their speeds; progress goes to `err`.

    Raises InvalidSpecError or OptionError before anything runs, TrialError later.
    """
    if is_emulated(options.precision, options.device, read_cpuinfo()):
        raise OptionError(
            f"--precision {options.precision}: this processor has no instructions for it (AVX512-BF16 or AMX) and "
            "would emulate it, far slower than fp32; use --precision fp32, or another machine"
        )
    if options.device == "cuda" and options.workers not in {None, 1}:
        raise OptionError(f"--workers {options.workers}: with --device cuda a trainer has one worker")
    job, windows = asyncio.run(_measure(options, err, {**environment, "OMP_WAIT_POLICY": "PASSIVE"}))
    setting = {
        "device": options.device,
        "precision": options.precision,
        "preset": options.preset.value,
        "entrypoint": options.entrypoint,
        "rows": options.rows,
        "batch_size": BATCH_SIZE,
        "trainers": options.trainers,
        "shards": options.shards,
        "workers": job.workers,
        "batch_gflop": None if options.entrypoint else products_of(job.model).flops(BATCH_SIZE) / 1e9,
    }
    result(setting, windows).show(out, as_json=options.json)


def write_samples(job: JobSpec, samples: Path, environment: Mapping[str, str]) -> None:
    """Write the file of a job's samples. Raises TrialError."""
    _write(job, samples, environment, "samples", "--rows", str(_SAMPLES))


def _document(
    setting: Mapping[str, Any], windows: Mapping[str, Sequence[Window]], found: Mapping[str, Summary]
) -> dict[str, Any]:
    return {
        **setting,
        "contenders": {name: _summary_as_json(summary) for name, summary in found.items()},
        "ratio_to_single": {name: summary.ratio for name, summary in found.items() if name != SINGLE},
        "windows": {name: [asdict(window) for window in each] for name, each in windows.items()},
    }


def _lines(setting: Mapping[str, Any], found: Mapping[str, Summary]) -> Iterator[str | Table]:
    shown = table(*_TITLES)
    for name, summary in found.items():
        values = (summary.p50_ms, summary.p99_ms, summary.resident_bytes / _MIB)
        shown.add_row(
            name,
            f"{summary.samples_per_s:,.0f}",
            f"{summary.ratio:.3f}",
            "" if summary.bound is None else f"{summary.bound.share:.3f}",
            *(f"{each:,.1f}" for each in values),
        )
    yield shown
    if (bound := found[SINGLE].bound) is not None:
        yield f"bound: the {setting['batch_gflop']:.2f} GFLOP of a batch alone, {bound.products_ms:.1f} ms"
    if ENCRYPTED in found:
        yield f"with TLS, of without: {found[ENCRYPTED].samples_per_s / found[CPRJOB].samples_per_s:.3f}"
    for name, summary in found.items():
        for role, stages in summary.stages_ms.items():
            yield f"{name}, ms per step of a {role}: {_listed(stages)}"
        yield f"{name}, processor ms per step: {_listed(summary.cpu_ms)}"


def _summary_as_json(summary: Summary) -> dict[str, Any]:
    return {
        "samples_per_s": summary.samples_per_s,
        "share_of_bound": None if summary.bound is None else summary.bound.share,
        "step_p50_ms": summary.p50_ms,
        "step_p99_ms": summary.p99_ms,
        "resident_mib": summary.resident_bytes / _MIB,
        "stages_ms": {role: dict(stages) for role, stages in summary.stages_ms.items()},
        "cpu_ms": dict(summary.cpu_ms),
    }


def _listed(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in values.items())


async def _measure(
    options: TrainOptions, err: Console, environment: Mapping[str, str]
) -> tuple[JobSpec, dict[str, list[Window]]]:
    """Return the job, and the windows of each system."""
    with tempfile.TemporaryDirectory(prefix="cprjob-") as name:
        folder = Path(name)
        job, systems = _systems(options, folder, environment)
        # The products of a network of a user are not known.
        async with open_meters(environment, folder, None if options.entrypoint else job) as meters:
            windows = await measure_alternately(
                systems, folder, options.repeats, options.seconds, meters, BATCH_SIZE, err
            )
    return job, windows


def _systems(options: TrainOptions, folder: Path, environment: Mapping[str, str]) -> tuple[JobSpec, tuple[System, ...]]:
    """Write the samples; return the job, with the number of workers of each trainer, and all systems, `single` first.

    The number of workers is measured once, because each window is a new job.
    """
    commands = baseline_commands(options.baselines)
    samples = folder / "samples.tsv"

    def job_with(workers: int) -> tuple[dict[str, Any], JobSpec]:
        job = document(
            options.preset,
            rows=options.rows,
            trainers=options.trainers,
            shards=options.shards,
            workers=workers,
            precision=options.precision,
            samples=samples,
            store=folder / "store",
            interval_s=max(int(options.seconds / _INTERVALS_IN_WINDOW), 1),
            device=options.device,
            entrypoint=options.entrypoint,
        )
        return job, parse_job(job, uid="bench")

    job, spec = job_with(options.workers or 1)
    write_samples(spec, samples, environment)
    if options.workers is None and options.device == "cpu":
        job, spec = job_with(_measure_workers(spec, folder, environment))
    baselines = (Program(name, command, spec, environment) for name, command in commands.items())
    jobs = [CprJob(job, environment)]
    if options.encrypted:
        encrypted = {**job, "spec": {**job["spec"], "security": {"encryption": "TLS"}}}
        jobs.append(CprJob(encrypted, environment, ENCRYPTED))
    return spec, (*singles(spec, environment), *jobs, *baselines)


def _measure_workers(job: JobSpec, folder: Path, environment: Mapping[str, str]) -> int:
    found = folder / "workers.txt"
    _write(job, found, environment, "workers")
    return int(found.read_text())


def _write(job: JobSpec, file: Path, environment: Mapping[str, str], *role: str) -> None:
    """Write a file for a job by a role of the benchmarks. Raises TrialError."""
    termination_file, log = file.with_name("termination"), file.with_suffix(".log")
    variables = {**environment, env.SPEC: to_json(job), env.TERMINATION_FILE: str(termination_file)}
    command = (sys.executable, "-m", "cprjob_bench", *role, "--to", str(file))
    with log.open("wb") as output:
        code = subprocess.call(command, env=variables, stderr=output)  # noqa: S603 -- our own program
    if code:
        raise TrialError(failure_message(termination_file, log, code))
