"""The windows of systems: the measurements in each, and their summary."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, quantiles
from time import monotonic

from rich.console import Console

from cpr_contract.trace import TracedStep
from cpr_operator.cli.command_errors import TrialError
from cprjob_bench.commands.machine_load import GAUGE, PRODUCTS, Meters, processor_s, usage
from cprjob_bench.commands.systems import Run, System

_PERCENTILES = 100
#: Milliseconds of each stage of a step, by the role of the process.
Stages = Mapping[str, Mapping[str, float]]
_WARM_UP_STEPS = 60
#: The minimum for percentiles.
_MIN_STEPS = 20
_TIME_LIMIT_S = 120.0
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine's state: the speed of a fixed matrix product right before, and the fraction of stolen CPU time."""

    gauge_gflops: float
    stolen: float


@dataclass(frozen=True, slots=True)
class Bound:
    """The time of the products of a batch alone, next to a window, and its ratio to the time of a step in it."""

    products_ms: float
    share: float

    @classmethod
    def of(cls, products_ms: float, samples_per_s: float, batch_size: int) -> Bound:
        """Return the bound of a window with `samples_per_s`, in steps of `batch_size` samples."""
        return cls(products_ms, products_ms / (1e3 * batch_size / samples_per_s))


@dataclass(frozen=True, slots=True)
class Window:
    """One system in one repeat.

    stages_ms: mean time of each stage of a step, by role; the stages add up to the step.
    cpu_ms: processor time per step, summed over all processes of a role.
    resident_bytes: resident memory at the end, by role, see `machine_load.Usage`.
    saves: committed cuts, None for a system that does not save.
    sent_bytes_per_sample: between members, None if not counted.
    kept_bytes: members' memory for redundancy at the end, by kind; empty if not counted.
    bound: None if not measured.
    """

    samples_per_s: float
    p50_ms: float
    p99_ms: float
    stages_ms: Stages
    cpu_ms: Mapping[str, float]
    resident_bytes: Mapping[str, int]
    saves: int | None
    machine: Machine
    sent_bytes_per_sample: float | None = None
    kept_bytes: Mapping[str, int] = field(default_factory=dict)
    bound: Bound | None = None


@dataclass(frozen=True, slots=True)
class Timing:
    """The steps of a window."""

    steps: int
    samples_per_s: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Summary:
    """The medians over a system's windows; `ratio` compares windows of the same repeat.

    bound: None if a window has none.
    """

    samples_per_s: float
    p50_ms: float
    p99_ms: float
    resident_bytes: float
    stages_ms: Stages
    cpu_ms: Mapping[str, float]
    ratio: float
    bound: Bound | None = None


def time_steps(steps: Sequence[TracedStep], begin_s: float, end_s: float, batch_size: int) -> Timing:
    """Time the steps that ended in a window of the monotonic clock; percentiles need at least three."""
    inside = [step for step in steps if begin_s <= step.ended_s <= end_s]
    durations = [later.ended_s - earlier.ended_s for earlier, later in pairwise(inside)]
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


def summarise(windows: Sequence[Window], reference: Sequence[Window]) -> Summary:
    """Return the medians of windows, and the ratio to the windows of the `reference`, repeat by repeat."""
    bounds = [window.bound for window in windows if window.bound is not None]
    return Summary(
        samples_per_s=median(window.samples_per_s for window in windows),
        p50_ms=median(window.p50_ms for window in windows),
        p99_ms=median(window.p99_ms for window in windows),
        resident_bytes=median(sum(window.resident_bytes.values()) for window in windows),
        stages_ms={role: _medians([each.stages_ms[role] for each in windows]) for role in windows[0].stages_ms},
        cpu_ms=_medians([window.cpu_ms for window in windows]),
        ratio=median(mine.samples_per_s / its.samples_per_s for mine, its in zip(windows, reference, strict=True)),
        bound=(
            Bound(median(each.products_ms for each in bounds), median(each.share for each in bounds))
            if len(bounds) == len(windows)
            else None
        ),
    )


async def measure_alternately(  # noqa: PLR0913, PLR0917 -- the systems, the measurement and its progress
    systems: Sequence[System],
    folder: Path,
    repeats: int,
    seconds: int,
    meters: Meters,
    batch_size: int,
    err: Console,
) -> dict[str, list[Window]]:
    """Measure `repeats` windows of each system, one after the other, in a rotated order. Raises TrialError."""
    windows: dict[str, list[Window]] = {system.name: [] for system in systems}
    for repeat in range(repeats):
        shift = repeat % len(systems)
        for system in (*systems[shift:], *systems[:shift]):
            place = folder / f"{system.name}-{repeat}"
            place.mkdir()
            window = await measure(system, place, seconds, meters, batch_size)
            windows[system.name].append(window)
            err.print(_progress(repeat, system.name, window), highlight=False)
    return windows


async def measure(system: System, folder: Path, seconds: float, meters: Meters, batch_size: int) -> Window:
    """Start a system, wait until it is warm, and measure it for `seconds`. Raises TrialError.

    The products are timed right before the system starts and right after it has ended, and their mean counts. On a slow
    machine the window lasts until it has the minimum of steps, and a cut of a system that saves.
    """
    gflops = await meters.gauge.value()
    products_ms = [] if meters.products is None else [await meters.products.value()]
    async with system.started(folder) as run:
        await _wait_for_steps(system.name, run, _WARM_UP_STEPS)
        saves, used, (all_s, stolen_s), sent, begin = (
            await run.saves(),
            usage(),
            processor_s(),
            run.sent_bytes(),
            monotonic(),
        )
        await asyncio.sleep(seconds)
        await _wait_for_steps(system.name, run, _MIN_STEPS + 1, begin)
        if saves is not None:
            await _wait_for_cut(system.name, run, saves)
        end, sent_end, (all_end_s, stolen_end_s), used_end = monotonic(), run.sent_bytes(), processor_s(), usage()
        saves_end, buffered = await run.saves(), await run.kept_bytes()
        await run.check()
        traces = run.traces()
    if meters.products is not None:
        products_ms.append(await meters.products.value())
    timing = time_steps(next(iter(traces.values())), begin, end, batch_size)
    used_end = {role: now for role, now in used_end.items() if role not in {GAUGE, PRODUCTS}}
    return Window(
        samples_per_s=timing.samples_per_s,
        p50_ms=timing.p50_ms,
        p99_ms=timing.p99_ms,
        stages_ms=time_stages(traces, begin, end),
        cpu_ms={role: 1e3 * (now.cpu_s - used[role].cpu_s) / timing.steps for role, now in used_end.items()},
        resident_bytes={role: now.resident_bytes for role, now in used_end.items() if role != "cprjob"},
        saves=None if saves is None or saves_end is None else saves_end - saves,
        machine=Machine(gflops, (stolen_end_s - stolen_s) / (all_end_s - all_s)),
        sent_bytes_per_sample=(
            None if sent is None or sent_end is None else (sent_end - sent) / (timing.steps * batch_size)
        ),
        kept_bytes=buffered,
        bound=Bound.of(fmean(products_ms), timing.samples_per_s, batch_size) if products_ms else None,
    )


def _medians(values: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: median(each.get(name, 0.0) for each in values) for name in values[0]}


async def _wait_for_steps(name: str, run: Run, fewest: int, since_s: float = 0.0) -> None:
    """Wait until `fewest` steps have ended since a time of the monotonic clock."""

    async def done() -> bool:
        return sum(step.ended_s >= since_s for step in next(iter(run.traces().values()))) >= fewest

    await _until(run, f"{name} did not do {fewest} steps", done)


async def _wait_for_cut(name: str, run: Run, before: int) -> None:
    """Wait until more cuts than before are committed."""

    async def done() -> bool:
        return (await run.saves() or 0) > before

    await _until(run, f"{name} did not commit a cut", done)


async def _until(run: Run, problem: str, done: Callable[[], Awaitable[bool]]) -> None:
    end = monotonic() + _TIME_LIMIT_S
    while not await done():
        await run.check()
        if monotonic() > end:
            raise TrialError(f"{problem} within {_TIME_LIMIT_S:.0f} s")
        await asyncio.sleep(_POLL_S)


def _progress(repeat: int, name: str, window: Window) -> str:
    machine, bound = window.machine, window.bound
    share = "" if bound is None else f"{bound.share:.3f} of the bound; "
    saves = "" if window.saves is None else f"committed cuts {window.saves}; "
    return (
        f"repeat {repeat + 1}, {name}: {window.samples_per_s:,.0f} samples/s, step p50 {window.p50_ms:.1f} ms, "
        f"p99 {window.p99_ms:.1f} ms; {share}{saves}gauge {machine.gauge_gflops:.0f} GFLOP/s, "
        f"{machine.stolen:.1%} stolen"
    )
