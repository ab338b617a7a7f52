"""The result of the bench, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from cpr_contract.spec import Strategy
from cprjob_bench.commands.result import Result, table
from cprjob_bench.commands.snapshot.summary import Speed, Summary, Wait, summarise
from cprjob_bench.documents.snapshot import Cut, Figures

_MIB = 1 << 20


def result(setting: dict[str, Any], strategies: Sequence[Strategy], figures: Figures) -> Result:
    """The setting of the bench and its figures; three tables: speed, effect on training, and size."""
    summary = summarise(figures)
    return Result(_document(setting, strategies, figures, summary), _lines(strategies, figures, summary))


def _document(
    setting: dict[str, Any], strategies: Sequence[Strategy], figures: Figures, found: Summary
) -> dict[str, Any]:
    """Bit widths are strings, as keys."""
    summary = asdict(found)
    extra = summary.pop("extra_memory")
    return {
        **setting,
        "shard_mib": figures.table_bytes / _MIB,
        **summary,
        "extra_memory_mib": None if extra is None else extra / _MIB,
        "tracker_bytes": dict(zip(strategies, figures.trackers, strict=True)),
        "rows_saved": {cut.strategy: cut.rows for cut in figures.cuts},
        "bytes": _by_strategy(figures.cuts, strategies, "size_bytes"),
        "seconds": _by_strategy(figures.cuts, strategies, "wall_s"),
    }


def _lines(strategies: Sequence[Strategy], figures: Figures, summary: Summary) -> Iterator[str | Table]:
    yield from (_speeds(summary), "", _waits(summary), "")
    yield from _costs(summary, figures.table_bytes)
    yield from ("", _sizes(strategies, figures))


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


def _sizes(strategies: Sequence[Strategy], figures: Figures) -> Table:
    bits = sorted({cut.bits for cut in figures.cuts}, reverse=True)
    sizes = _by_strategy(figures.cuts, strategies, "size_bytes")
    rows = {cut.strategy: cut.rows for cut in figures.cuts}
    shown = table("one save, MiB", "rows", *(f"{width} bits" for width in bits), "tracker, MiB")
    for strategy, tracker_bytes in zip(strategies, figures.trackers, strict=True):
        weights = (f"{sizes[strategy][str(width)] / _MIB:.1f}" for width in bits)
        shown.add_row(strategy, f"{rows[strategy]:,}", *weights, f"{tracker_bytes / _MIB:.1f}")
    return shown
