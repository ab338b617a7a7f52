"""`cprjob bench redundancy`: the costs and the speed of a lost shard's recovery, compared with ECRec."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from cpr_operator.api.validate import parse_job
from cpr_operator.cli.command_errors import OptionError
from cpr_operator.cli.trainer_process import check_trainer_image
from cprjob_bench.bench_documents import ModeMetrics, RedundancyDocument
from cprjob_bench.commands.bench_result import Result, table
from cprjob_bench.commands.kills import Kill, kill_shards, metrics_by_mode
from cprjob_bench.commands.machine_load import open_meters
from cprjob_bench.commands.modes import MIN_SHARDS, MODES, NO_SAVE_S, ModeJob
from cprjob_bench.commands.train_bench import BATCH_SIZE, document, write_samples
from cprjob_bench.commands.windows import Window, measure_alternately
from cprjob_bench.options import RedundancyMode, TrainPreset

_COSTS = ("mode", "k", "samples/s", "of none", "processor", "bytes/sample", "extra memory", "parity", "log", "resident")
_KILLS = (
    "mode",
    "shard, MiB",
    "next step, s",
    "rebuild, GiB/s",
    "a core",
    "speed meanwhile",
    "redundant again, s",
    "kills",
)
_NOTHING = "-"
_MIB = 2**20
_TRAINERS = 1


@dataclass(frozen=True, slots=True)
class RedundancyOptions:
    """Options of the command.

    modes: in addition to `none`, which is always in the windows. rows: the maximum per table. sizes: MiB of a killed
    shard; empty: no kills. runs: kills per mode and size. seconds: the length of a window.
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


def result(document: RedundancyDocument) -> Result:
    """Return the document, and two tables: costs of each mode, and recovery of killed shards; then the reasons of -."""
    return Result(asdict(document), _lines(document))


def bench_redundancy(options: RedundancyOptions, out: Console, err: Console, environment: Mapping[str, str]) -> None:
    """Measure all modes and print the costs and the recovery of each; progress goes to `err`.

    Raises OptionError and InvalidSpecError before anything runs, TrialError later.
    """
    if options.shards < MIN_SHARDS:
        raise OptionError(f"--shards {options.shards}: all modes need the same number, of {MIN_SHARDS} at least")
    check_trainer_image()
    variables = {**environment, "OMP_WAIT_POLICY": "PASSIVE"}
    found = asyncio.run(_measure(options, err, variables))
    result(found).show(out, as_json=options.json)


def _lines(document: RedundancyDocument) -> Iterator[str | Table]:
    costs, kills = table(*_COSTS), table(*_KILLS)
    for name, mode in document.modes.items():
        costs.add_row(name, *_costs(mode))
        for size, found in mode.recovery.items():
            cells = (
                _number(found.seconds_to_next_step),
                _number(found.rebuild_gib_s),
                _number(found.rebuild_gib_per_core_s),
                _number(found.throughput_while_rebuilding),
                _number(found.redundant_again_s),
            )
            kills.add_row(name, f"{int(size):,}", *cells, str(found.kills))
    yield costs
    yield f"Memory is in tables of {document.table_mib:,.0f} MiB."
    if kills.row_count:
        yield ""
        yield kills
        yield from _reasons(document)


def _costs(mode: ModeMetrics) -> tuple[str, ...]:
    ratios = (mode.extra_memory, mode.parity_memory, mode.log_memory, mode.resident_of_none)
    return (
        str(mode.data_shards or _NOTHING),
        f"{mode.samples_per_s:,.0f}",
        f"{mode.throughput_of_none:.3f}",
        f"{mode.processor_of_none:.3f}",
        f"{mode.network_bytes_per_sample:,.0f}",
        *(f"{ratio:.2f}" for ratio in ratios),
    )


def _reasons(document: RedundancyDocument) -> Iterator[str]:
    """Yield each reason once, with its modes."""
    modes = dict[str, list[str]]()
    for name, mode in document.modes.items():
        for reason in dict.fromkeys(why for found in mode.recovery.values() for why in found.why_null.values()):
            modes.setdefault(reason, []).append(name)
    for reason, names in modes.items():
        yield f"{_NOTHING} of {', '.join(names)}: {reason}."


def _number(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.2f}"


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
        modes=metrics_by_mode(windows, kills, table_bytes),
        windows={name.value: tuple(asdict(window) for window in found) for name, found in windows.items()},
    )


async def _windows(
    modes: Sequence[RedundancyMode], options: RedundancyOptions, err: Console, environment: Mapping[str, str]
) -> tuple[dict[RedundancyMode, list[Window]], int]:
    """Measure the modes in turn; return their windows, and the bytes of the tables with their optimizer's state."""
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
        spec = parse_job(job, uid="bench")
        write_samples(spec, samples, environment)
        systems = [ModeJob(mode, job, environment) for mode in modes]
        async with open_meters(environment, folder) as meters:
            windows = await measure_alternately(
                systems, folder, options.repeats, options.seconds, meters, BATCH_SIZE, err
            )
    # A row has its values, and one value of its row-wise optimizer.
    table_bytes = sum(4 * (spec.model.embedding_dim + 1) * table.rows for table in spec.model.tables)
    return {mode: windows[mode.value] for mode in modes}, table_bytes
