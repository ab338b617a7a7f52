"""Reduces the figures of all repeats to medians. Pure.

Ratios are medians of the ratios of each pair, not ratios of medians, because a slow phase of this
machine slows both halves of a pair.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from cprjob_bench.documents.snapshot import Contest, Figures, Round, Window

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Speed:
    """Saving or restoring, beside a raw client; `of_raw` is the ratio of the two speeds."""

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
    """The result of the bench. extra_memory: bytes beyond the tables, None if the system has no figure."""

    save: Speed
    restore: Speed
    push_p50_ms: Wait
    push_p99_ms: Wait
    lookup_p50_ms: Wait
    lookup_p99_ms: Wait
    pause_ms: float
    extra_memory: int | None


def summarise(figures: Figures) -> Summary:
    """Reduce the figures to medians over the repeats."""

    def wait(percentile: Callable[[Window], float]) -> Wait:
        return _wait(figures.rounds, percentile)

    return Summary(
        save=_speed(figures.save, figures.table_bytes),
        restore=_speed(figures.restore, figures.table_bytes),
        push_p50_ms=wait(lambda window: window.push.p50_ms),
        push_p99_ms=wait(lambda window: window.push.p99_ms),
        lookup_p50_ms=wait(lambda window: window.lookup.p50_ms),
        lookup_p99_ms=wait(lambda window: window.lookup.p99_ms),
        pause_ms=1e3 * median(each.pause_s for each in figures.rounds),
        extra_memory=figures.extra_memory_bytes,
    )


def _speed(contests: Sequence[Contest], size_bytes: int) -> Speed:
    gib = size_bytes / _GIB
    return Speed(
        gib_s=median(gib / each.wall_s for each in contests),
        raw_gib_s=median(gib / each.raw_wall_s for each in contests),
        of_raw=median(each.raw_wall_s / each.wall_s for each in contests),
        cpu_s_per_gib=median(each.cpu_s / gib for each in contests),
        raw_cpu_s_per_gib=median(each.raw_cpu_s / gib for each in contests),
    )


def _wait(rounds: Sequence[Round], percentile: Callable[[Window], float]) -> Wait:
    pairs = [(percentile(each.idle), percentile(each.saving)) for each in rounds]
    return Wait(
        idle=median(idle for idle, _ in pairs),
        saving=median(saving for _, saving in pairs),
        ratio=median(saving / idle for idle, saving in pairs),
    )
