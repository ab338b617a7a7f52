"""Reduces windows and kills to the figures of the document. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from cpr_contract.env import ROLE_SHARD, ROLE_TRAINER
from cprjob_bench.commands.redundancy.design import MODES
from cprjob_bench.commands.train.windows import Window, summarise
from cprjob_bench.documents.redundancy import ModeFigures, Recovery
from cprjob_bench.options import RedundancyMode

#: Seconds before a kill that those after it are compared with.
BEFORE_S = 5.0
#: The rate over fewer steps says nothing.
_FEWEST_STEPS = 5
_NO_PARITY = "there is no parity to be made whole again: the shard serves once it has its rows"
_MANY_THREADS = "several threads load a save, and nobody counts their processor time"
_AT_ONCE = "parity held all shards again before there were enough steps to count"


@dataclass(frozen=True, slots=True)
class Kill:
    """What became of one kill; see `Recovery`. tier: how the operator recorded it."""

    seconds_to_next_step: float
    rebuild_gib_s: float
    rebuild_gib_per_core_s: float | None
    redundant_again_s: float | None
    throughput_while_rebuilding: float | None
    tier: str


def rate_ratio(ends_s: Sequence[float], killed_s: float, resumed_s: float, again_s: float) -> float | None:
    """Return the rate of steps from `resumed_s` to `again_s`, as a ratio to that of the seconds before `killed_s`.

    ends_s: when each step ended, ascending. None if either time has too few steps.
    """
    before = bisect_right(ends_s, killed_s) - bisect_left(ends_s, killed_s - BEFORE_S)
    after = bisect_right(ends_s, again_s) - bisect_right(ends_s, resumed_s)
    if min(before, after) < _FEWEST_STEPS:
        return None
    began_s = max(killed_s - BEFORE_S, ends_s[0])
    return after / (again_s - resumed_s) / (before / (killed_s - began_s))


def recovery_of(name: RedundancyMode, kills: Sequence[Kill]) -> Recovery:
    """Return the medians over the kills of a mode at one size; there are none where no shard is killed."""
    nothing = MODES[name].why_no_kill

    def middle(figure: Callable[[Kill], float | None]) -> float | None:
        known = [value for kill in kills if (value := figure(kill)) is not None]
        return median(known) if known else None

    figures = {
        "seconds_to_next_step": middle(lambda kill: kill.seconds_to_next_step),
        "rebuild_gib_s": middle(lambda kill: kill.rebuild_gib_s),
        "rebuild_gib_per_core_s": middle(lambda kill: kill.rebuild_gib_per_core_s),
        "throughput_while_rebuilding": middle(lambda kill: kill.throughput_while_rebuilding),
        "redundant_again_s": middle(lambda kill: kill.redundant_again_s),
    }
    reason = nothing or (_AT_ONCE if MODES[name].data_shards else _NO_PARITY)
    why_null = {figure: reason for figure, value in figures.items() if value is None}
    if not nothing and "rebuild_gib_per_core_s" in why_null:
        why_null["rebuild_gib_per_core_s"] = _MANY_THREADS
    return Recovery(**figures, kills=len(kills), why_null=why_null)


def figures_of(
    windows: Mapping[RedundancyMode, Sequence[Window]],
    kills: Mapping[RedundancyMode, Mapping[int, Sequence[Kill]]],
    table_bytes: int,
) -> dict[str, ModeFigures]:
    """Return the figures of each mode. table_bytes: of all tables of the windows' job, with their optimizer's state."""
    none = windows[RedundancyMode.NONE]
    return {name.value: _mode_figures(name, windows[name], none, kills.get(name, {}), table_bytes) for name in windows}


def _mode_figures(
    name: RedundancyMode,
    mine: Sequence[Window],
    none: Sequence[Window],
    kills: Mapping[int, Sequence[Kill]],
    table_bytes: int,
) -> ModeFigures:
    summary = summarise(mine, none)
    parity, log = (median(window.kept_bytes[what] for window in mine) / table_bytes for what in ("parity", "log"))
    beyond = (_resident(window) - _resident(its) for window, its in zip(mine, none, strict=True))
    return ModeFigures(
        data_shards=MODES[name].data_shards,
        samples_per_s=summary.samples_per_s,
        throughput_of_none=summary.ratio,
        processor_of_none=median(_processor_ms(one) / _processor_ms(its) for one, its in zip(mine, none, strict=True)),
        network_bytes_per_sample=median(window.sent_bytes_per_sample or 0.0 for window in mine),
        extra_memory=parity + log,
        parity_memory=parity,
        log_memory=log,
        resident_of_none=median(beyond) / table_bytes,
        recovery={str(size): recovery_of(name, found) for size, found in kills.items()},
    )


def _resident(window: Window) -> int:
    return sum(window.rss_bytes.values())


def _processor_ms(window: Window) -> float:
    """Processor time of a step, in ms, without that of the operator and the bench."""
    return sum(spent for role, spent in window.cpu_ms.items() if role in {ROLE_TRAINER, ROLE_SHARD})
