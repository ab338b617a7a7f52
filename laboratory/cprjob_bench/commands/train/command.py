"""The command: reads the options, runs the contenders in turn, prints the result."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from cpr_contract import env
from cpr_contract.codec import to_json
from cpr_contract.processor import is_emulated, read_cpuinfo
from cpr_contract.spec import JobSpec, Precision
from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.api.validate import parse_spec, validate
from cpr_operator.cli.asking import TrialError, why
from cpr_operator.cli.console import OptionError
from cpr_operator.cli.document import InvalidDocumentError
from cprjob_bench.commands.train.contenders import Contender, CprJob, Program, peer_commands, single
from cprjob_bench.commands.train.machine import open_gauge
from cprjob_bench.commands.train.measuring import in_turn
from cprjob_bench.commands.train.presets import BATCH_SIZE, document
from cprjob_bench.commands.train.show import result
from cprjob_bench.commands.train.windows import Window
from cprjob_bench.options import TrainPreset

_SAMPLES = 100_000
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
        async with open_gauge(environment, folder / "gauge.txt") as gauge:
            return await in_turn(contenders, folder, options.repeats, options.seconds, gauge, BATCH_SIZE, err)


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
    write_samples(spec, samples, environment)
    peers = (Program(name, command, spec, environment) for name, command in commands.items())
    return single(spec, environment), CprJob(job, environment), *peers


def write_samples(job: JobSpec, samples: Path, environment: Mapping[str, str]) -> None:
    """Write the file that a job trains on. Raises TrialError."""
    last_word, log = samples.with_name("termination"), samples.with_name("samples.txt")
    variables = {**environment, env.SPEC: to_json(job), env.TERMINATION_FILE: str(last_word)}
    command = (sys.executable, "-m", "cprjob_bench", "samples", "--rows", str(_SAMPLES), "--to", str(samples))
    with log.open("wb") as output:
        code = subprocess.call(command, env=variables, stderr=output)  # noqa: S603 -- our own program
    if code:
        raise TrialError(why(last_word, log, code))
