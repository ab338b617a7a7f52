"""The measurements of a contender in one window, and their summary over several. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, median, quantiles

from cpr_contract.env import TracedStep

_PERCENTILES = 100
_FEWEST_STEPS = 20

#: Milliseconds of each stage of a step, by the role of the process.
Stages = Mapping[str, Mapping[str, float]]


class TooShortError(ValueError):
    """The window holds too few steps for percentiles."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine's state: speed of a fixed matrix product right before, fraction of CPU time stolen."""

    gauge_gflops: float
    stolen: float


@dataclass(frozen=True, slots=True)
class Window:
    """One contender in one repeat.

    stages_ms: mean time of each stage of a step, by role; the stages add up to the step.
    cpu_ms: processor time per step, summed over all processes of a role.
    rss_bytes: resident memory at the end, by role.
    saves: committed cuts, None for a contender that does not save.
    sent_bytes_per_sample: what members sent to each other, None where nobody counts.
    kept_bytes: what members hold for redundancy at the end, by what it is; empty where nobody tells.
    """

    samples_per_s: float
    p50_ms: float
    p99_ms: float
    stages_ms: Stages
    cpu_ms: Mapping[str, float]
    rss_bytes: Mapping[str, int]
    saves: int | None
    machine: Machine
    sent_bytes_per_sample: float | None = None
    kept_bytes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Timing:
    """The steps of a window."""

    steps: int
    samples_per_s: float
    p50_ms: float
    p99_ms: float


def time_steps(steps: Sequence[TracedStep], begin_s: float, end_s: float, batch_size: int) -> Timing:
    """Time the steps that ended in a window of the monotonic clock. Raises TooShortError."""
    inside = [step for step in steps if begin_s <= step.ended_s <= end_s]
    durations = [later.ended_s - earlier.ended_s for earlier, later in pairwise(inside)]
    if len(durations) < _FEWEST_STEPS:
        raise TooShortError(f"only {len(durations)} steps in {end_s - begin_s:.0f} s; increase --seconds")
    percentiles = quantiles(durations, n=_PERCENTILES)
    return Timing(
        steps=len(durations),
        samples_per_s=len(durations) * batch_size / (inside[-1].ended_s - inside[0].ended_s),
        p50_ms=1e3 * percentiles[49],
        p99_ms=1e3 * percentiles[98],
    )


def time_stages(traces: Mapping[str, Sequence[TracedStep]], begin_s: float, end_s: float) -> Stages:
    """Return the mean time of each stage, by role, over the steps that ended in a window."""
    found = {}
    for role, steps in traces.items():
        inside = [step for step in steps if begin_s <= step.ended_s <= end_s]
        stages = dict.fromkeys(stage for step in inside for stage in step.stages_s)
        found[role] = {stage: 1e3 * fmean(step.stages_s.get(stage, 0.0) for step in inside) for stage in stages}
    return found


@dataclass(frozen=True, slots=True)
class Summary:
    """The medians over a contender's windows; `ratio` compares windows of the same repeat."""

    samples_per_s: float
    p50_ms: float
    p99_ms: float
    rss_bytes: float
    stages_ms: Stages
    cpu_ms: Mapping[str, float]
    ratio: float


def summarise(windows: Sequence[Window], beside: Sequence[Window]) -> Summary:
    """Sum up windows; `beside` are those of the contender to compare with, repeat by repeat."""
    return Summary(
        samples_per_s=median(window.samples_per_s for window in windows),
        p50_ms=median(window.p50_ms for window in windows),
        p99_ms=median(window.p99_ms for window in windows),
        rss_bytes=median(sum(window.rss_bytes.values()) for window in windows),
        stages_ms={role: _medians([each.stages_ms[role] for each in windows]) for role in windows[0].stages_ms},
        cpu_ms=_medians([window.cpu_ms for window in windows]),
        ratio=median(mine.samples_per_s / its.samples_per_s for mine, its in zip(windows, beside, strict=True)),
    )


def _medians(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: median(each.get(name, 0.0) for each in figures) for name in figures[0]}
