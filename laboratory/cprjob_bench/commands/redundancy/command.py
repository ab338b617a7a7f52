"""The command: lets all modes train in turn, then kills shards in each, and prints the result."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.api.validate import parse_spec, validate
from cpr_operator.cli import check_trainer_image
from cpr_operator.cli.console import OptionError
from cpr_operator.cli.document import InvalidDocumentError
from cprjob_bench.commands.redundancy.contender import Contender
from cprjob_bench.commands.redundancy.design import FEWEST_SHARDS, MODES, NO_SAVE_S
from cprjob_bench.commands.redundancy.kills import kill_shards
from cprjob_bench.commands.redundancy.show import result
from cprjob_bench.commands.redundancy.summary import Kill, figures_of
from cprjob_bench.commands.train.command import write_samples
from cprjob_bench.commands.train.machine import open_gauge
from cprjob_bench.commands.train.measuring import in_turn
from cprjob_bench.commands.train.presets import BATCH_SIZE, document
from cprjob_bench.commands.train.windows import Window
from cprjob_bench.documents.redundancy import RedundancyDocument
from cprjob_bench.options import RedundancyMode, TrainPreset

_MIB = 2**20
_TRAINERS = 1


@dataclass(frozen=True, slots=True)
class RedundancyOptions:
    """What the command line asks for.

    modes: beside `none`, which always takes part in the windows. rows: the maximum per table. sizes: MiB of a killed
    shard; none: no shard is killed. runs: kills per mode and size. seconds: the length of a window.
    """

    modes: tuple[RedundancyMode, ...]
    preset: TrainPreset
    rows: int
    shards: int
    sizes: tuple[int, ...]
    runs: int
    repeats: int
    seconds: int
    json: bool


def bench_redundancy(options: RedundancyOptions, out: Console, err: Console, environment: Mapping[str, str]) -> None:
    """Measure all modes and print what each costs and gives; progress goes to `err`.

    Raises OptionError and InvalidDocumentError before anything runs, TrialError later.
    """
    if options.shards < FEWEST_SHARDS:
        raise OptionError(f"--shards {options.shards}: all modes need the same number, of {FEWEST_SHARDS} at least")
    check_trainer_image()
    variables = {**environment, "OMP_WAIT_POLICY": "PASSIVE"}
    found = asyncio.run(_measure(options, err, variables))
    result(found).show(out, as_json=options.json)


async def _measure(options: RedundancyOptions, err: Console, environment: Mapping[str, str]) -> RedundancyDocument:
    modes = tuple(dict.fromkeys((RedundancyMode.NONE, *options.modes)))
    windows, table_bytes = await _windows(modes, options, err, environment)
    kills: dict[RedundancyMode, dict[int, Sequence[Kill]]] = {}
    for name in options.modes:
        for size in options.sizes:
            killed = () if MODES[name].why_no_kill else await kill_shards(name, size, options.runs, err, environment)
            kills.setdefault(name, {})[size] = killed
    return RedundancyDocument(
        preset=options.preset.value,
        rows=options.rows,
        batch_size=BATCH_SIZE,
        trainers=_TRAINERS,
        shards=options.shards,
        table_mib=table_bytes / _MIB,
        repeats=options.repeats,
        seconds=options.seconds,
        modes=figures_of(windows, kills, table_bytes),
        windows={name.value: tuple(asdict(window) for window in found) for name, found in windows.items()},
    )


async def _windows(
    modes: Sequence[RedundancyMode], options: RedundancyOptions, err: Console, environment: Mapping[str, str]
) -> tuple[dict[RedundancyMode, list[Window]], int]:
    """Measure the modes in turn; also return the bytes of the tables with their optimizer's state."""
    with tempfile.TemporaryDirectory(prefix="cprjob-") as name:
        folder = Path(name)
        samples = folder / "samples.tsv"
        job = document(
            options.preset,
            rows=options.rows,
            trainers=_TRAINERS,
            shards=options.shards,
            workers=1,
            precision="fp32",
            samples=samples,
            store=folder / "store",
            interval_s=NO_SAVE_S,
        )
        if invalid := validate(job):
            raise InvalidDocumentError(invalid)
        spec = to_job_spec(parse_spec(job["spec"]), uid="bench", name=job["metadata"]["name"])
        write_samples(spec, samples, environment)
        contenders = [Contender(mode, job, environment) for mode in modes]
        async with open_gauge(environment, folder / "gauge.txt") as gauge:
            windows = await in_turn(contenders, folder, options.repeats, options.seconds, gauge, BATCH_SIZE, err)
    # Of each row its values, and one of its row-wise optimizer.
    table_bytes = sum(4 * (spec.model.embedding_dim + 1) * table.rows for table in spec.model.tables)
    return {mode: windows[mode.value] for mode in modes}, table_bytes
