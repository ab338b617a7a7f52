"""The result of the bench, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from rich.table import Table

from cprjob_bench.commands.result import Result, table
from cprjob_bench.documents.redundancy import ModeFigures, RedundancyDocument

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


def result(document: RedundancyDocument) -> Result:
    """The document, and two tables: what each mode costs, and what becomes of a killed shard; then why there is a -."""
    return Result(asdict(document), _lines(document))


def _lines(document: RedundancyDocument) -> Iterator[str | Table]:
    costs, kills = table(*_COSTS), table(*_KILLS)
    for name, mode in document.modes.items():
        costs.add_row(name, *_costs(mode))
        for size, found in mode.recovery.items():
            figures = (
                _number(found.seconds_to_next_step),
                _number(found.rebuild_gib_s),
                _number(found.rebuild_gib_per_core_s),
                _number(found.throughput_while_rebuilding),
                _number(found.redundant_again_s),
            )
            kills.add_row(name, f"{int(size):,}", *figures, str(found.kills))
    yield costs
    yield f"Memory is in tables of {document.table_mib:,.0f} MiB."
    if kills.row_count:
        yield ""
        yield kills
        yield from _reasons(document)


def _costs(mode: ModeFigures) -> tuple[str, ...]:
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
    """Each reason once, with the modes that it is of."""
    modes = dict[str, list[str]]()
    for name, mode in document.modes.items():
        for reason in dict.fromkeys(why for found in mode.recovery.values() for why in found.why_null.values()):
            modes.setdefault(reason, []).append(name)
    for reason, names in modes.items():
        yield f"{_NOTHING} of {', '.join(names)}: {reason}."


def _number(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.2f}"
