"""The command: reads the options, runs the contenders in turn, prints the result."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from rich.console import Console

from cpr_contract import env
from cpr_contract.codec import to_json
from cpr_contract.processor import is_emulated, read_cpuinfo
from cpr_contract.spec import JobSpec, Precision
from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.api.validate import parse_spec, validate
from cpr_operator.cli.document import InvalidDocumentError
from cpr_operator.cli.options import OptionError
from cpr_operator.cli.trials import TrialError, why
from cprjob_bench.commands.train.contenders import Contender, CprJob, Program, Run, peer_commands, single
from cprjob_bench.commands.train.machine import Gauge, open_gauge, processor_s, usage
from cprjob_bench.commands.train.presets import BATCH_SIZE, document
from cprjob_bench.commands.train.show import result
from cprjob_bench.commands.train.windows import Machine, TooShortError, Window, time_stages, time_steps
from cprjob_bench.options import TrainPreset

_SAMPLES = 100_000
_WARM_UP_STEPS = 60
_START_S = 120.0
_POLL_S = 0.2
#: Intervals between cuts in a window: at least one, and the time that its save takes.
_INTERVALS_IN_WINDOW = 1.5


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """What the command line asks for.

    rows: the maximum number per table. seconds: the length of a window. peers: other programs
    that take part, as NAME=COMMAND.
    """

    preset: TrainPreset
    rows: int
    trainers: int
    shards: int
    workers: int
    precision: Precision
    repeats: int
    seconds: int
    json: bool
    peers: tuple[str, ...] = ()


def bench_train(options: TrainOptions, out: Console, err: Console, environment: Mapping[str, str]) -> None:
    """Run all contenders in turn and print their speeds; progress goes to `err`.

    Raises InvalidDocumentError or OptionError before anything runs, TrialError later.
    """
    if is_emulated(options.precision, "cpu", read_cpuinfo()):
        raise OptionError(
            f"--precision {options.precision}: this processor has no instructions for it (AVX512-BF16 or AMX) and "
            "would emulate it, far slower than fp32; use --precision fp32, or another machine"
        )
    windows = asyncio.run(_measure(options, err, {**environment, "OMP_WAIT_POLICY": "PASSIVE"}))
    setting = {
        "precision": options.precision,
        "preset": options.preset.value,
        "rows": options.rows,
        "batch_size": BATCH_SIZE,
        "trainers": options.trainers,
        "shards": options.shards,
        "workers": options.workers,
    }
    result(setting, windows).show(out, as_json=options.json)


async def _measure(options: TrainOptions, err: Console, environment: Mapping[str, str]) -> dict[str, list[Window]]:
    with tempfile.TemporaryDirectory(prefix="cprjob-") as name:
        folder = Path(name)
        contenders = _contenders(options, folder, environment)
        windows: dict[str, list[Window]] = {contender.name: [] for contender in contenders}
        async with open_gauge(environment, folder / "gauge.txt") as gauge:
            for repeat in range(options.repeats):
                shift = repeat % len(contenders)
                for contender in (*contenders[shift:], *contenders[:shift]):
                    place = folder / f"{contender.name}-{repeat}"
                    place.mkdir()
                    window = await _run(contender, place, options.seconds, gauge)
                    windows[contender.name].append(window)
                    err.print(_progress(repeat, contender.name, window), highlight=False)
        return windows


def _contenders(options: TrainOptions, folder: Path, environment: Mapping[str, str]) -> tuple[Contender, ...]:
    """All contenders, single first. Also writes the samples that they train on."""
    commands = peer_commands(options.peers)
    samples = folder / "samples.tsv"
    job = document(
        options.preset,
        rows=options.rows,
        trainers=options.trainers,
        shards=options.shards,
        workers=options.workers,
        precision=options.precision,
        samples=samples,
        store=folder / "store",
        interval_s=max(int(options.seconds / _INTERVALS_IN_WINDOW), 1),
    )
    if invalid := validate(job):
        raise InvalidDocumentError(invalid)
    spec = to_job_spec(parse_spec(job["spec"]), uid="bench", name=job["metadata"]["name"])
    _write_samples(spec, samples, environment)
    peers = (Program(name, command, spec, environment) for name, command in commands.items())
    return single(spec, environment), CprJob(job, environment), *peers


def _write_samples(job: JobSpec, samples: Path, environment: Mapping[str, str]) -> None:
    last_word, log = samples.with_name("termination"), samples.with_name("samples.txt")
    variables = {**environment, env.SPEC: to_json(job), env.TERMINATION_FILE: str(last_word)}
    command = (sys.executable, "-m", "cprjob_bench", "samples", "--rows", str(_SAMPLES), "--to", str(samples))
    with log.open("wb") as output:
        code = subprocess.call(command, env=variables, stderr=output)  # noqa: S603 -- our own program
    if code:
        raise TrialError(why(last_word, log, code))


async def _run(contender: Contender, folder: Path, seconds: int, gauge: Gauge) -> Window:
    """Start a contender, let it warm up, and measure it."""
    gflops = await gauge.gflops()
    async with contender.started(folder) as run:
        await _warm_up(run)
        saves, used, (all_s, stolen_s), begin = await run.saves(), usage(), processor_s(), monotonic()
        await asyncio.sleep(seconds)
        end, (all_end_s, stolen_end_s), used_end, saves_end = monotonic(), processor_s(), usage(), await run.saves()
        await run.check()
        traces = run.traces()
    try:
        timing = time_steps(next(iter(traces.values())), begin, end, BATCH_SIZE)
    except TooShortError as error:
        raise TrialError(f"{contender.name}: {error}") from error
    saved = None if saves is None or saves_end is None else saves_end - saves
    if saved == 0:
        raise TrialError(f"{contender.name}: no cut was committed in {seconds} s; increase --seconds")
    del used_end["gauge"]
    return Window(
        samples_per_s=timing.samples_per_s,
        p50_ms=timing.p50_ms,
        p99_ms=timing.p99_ms,
        stages_ms=time_stages(traces, begin, end),
        cpu_ms={role: 1e3 * (now.cpu_s - used[role].cpu_s) / timing.steps for role, now in used_end.items()},
        rss_bytes={role: now.rss_bytes for role, now in used_end.items() if role != "cprjob"},
        saves=saved,
        machine=Machine(gflops, (stolen_end_s - stolen_s) / (all_end_s - all_s)),
    )


async def _warm_up(run: Run) -> None:
    """Wait until the contender has done some steps. Raises TrialError if that takes too long."""
    end = monotonic() + _START_S
    while len(next(iter(run.traces().values()))) < _WARM_UP_STEPS:
        await run.check()
        if monotonic() > end:
            raise TrialError(f"the contender did not do {_WARM_UP_STEPS} steps within {_START_S:.0f} s")
        await asyncio.sleep(_POLL_S)


def _progress(repeat: int, name: str, window: Window) -> str:
    machine = window.machine
    return (
        f"repeat {repeat + 1}, {name}: {window.samples_per_s:,.0f} samples/s, step p50 {window.p50_ms:.1f} ms, "
        f"p99 {window.p99_ms:.1f} ms; gauge {machine.gauge_gflops:.0f} GFLOP/s, {machine.stolen:.1%} stolen"
    )
