"""A window of a contender: starts it, waits until it is warm, and measures it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

from rich.console import Console

from cpr_operator.cli.asking import TrialError
from cprjob_bench.commands.train.contenders import Contender, Run
from cprjob_bench.commands.train.machine import Gauge, processor_s, usage
from cprjob_bench.commands.train.windows import Machine, TooShortError, Window, time_stages, time_steps

_WARM_UP_STEPS = 60
_START_S = 120.0
_POLL_S = 0.2


async def in_turn(  # noqa: PLR0913, PLR0917 -- what is measured, how, and who is told
    contenders: Sequence[Contender],
    folder: Path,
    repeats: int,
    seconds: int,
    gauge: Gauge,
    batch_size: int,
    err: Console,
) -> dict[str, list[Window]]:
    """Give each contender so many windows, one after the other, in a rotated order. Raises TrialError."""
    windows: dict[str, list[Window]] = {contender.name: [] for contender in contenders}
    for repeat in range(repeats):
        shift = repeat % len(contenders)
        for contender in (*contenders[shift:], *contenders[:shift]):
            place = folder / f"{contender.name}-{repeat}"
            place.mkdir()
            window = await _measure(contender, place, seconds, gauge, batch_size)
            windows[contender.name].append(window)
            err.print(_progress(repeat, contender.name, window), highlight=False)
    return windows


async def _measure(contender: Contender, folder: Path, seconds: int, gauge: Gauge, batch_size: int) -> Window:
    """Start a contender, let it warm up, and measure it for so many seconds."""
    gflops = await gauge.gflops()
    async with contender.started(folder) as run:
        await _warm_up(run)
        saves, used, (all_s, stolen_s), sent, begin = (
            await run.saves(),
            usage(),
            processor_s(),
            run.sent_bytes(),
            monotonic(),
        )
        await asyncio.sleep(seconds)
        end, sent_end, (all_end_s, stolen_end_s), used_end = monotonic(), run.sent_bytes(), processor_s(), usage()
        saves_end, kept = await run.saves(), await run.kept_bytes()
        await run.check()
        traces = run.traces()
    try:
        timing = time_steps(next(iter(traces.values())), begin, end, batch_size)
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
        sent_bytes_per_sample=(
            None if sent is None or sent_end is None else (sent_end - sent) / (timing.samples_per_s * (end - begin))
        ),
        kept_bytes=kept,
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
