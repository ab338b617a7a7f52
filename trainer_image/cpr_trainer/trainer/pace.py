"""How fast training goes, and what saves cost it: pure sums over steps. All times are in seconds."""

from __future__ import annotations

from collections import deque
from statistics import fmean, median

#: Steps without a save that make up the usual step; two merges of the scores lie among so many.
_NEIGHBOURS = 64
#: The first steps of a process fill caches: they are nobody's neighbours.
_WARM_UP_STEPS = 3
#: A wait is a pause once it lasts so long, or so many times the typical step (of so many), if that is longer.
_PATIENCE_S, _PATIENCE_STEPS, _TYPICAL = 1.0, 5, 9


class Pace:
    """Counts the steps of one process. `trained_s` is the time of all steps without the pauses in them."""

    def __init__(self) -> None:
        self.trained_s = 0.0
        self.paused_s = 0.0
        self._steps = 0
        self._usual: deque[float] = deque(maxlen=_NEIGHBOURS)
        self._last: deque[float] = deque(maxlen=_TYPICAL)

    def note(self, step_s: float, paused_s: float, *, saving: bool) -> float:
        """Count a step of `step_s`, `paused_s` of it a pause, and return how much the save under way delayed it.

        0 if none was (`saving`). The delay is what the step took beyond its neighbours without a save, so it may be
        negative: only sums over many steps mean something. A step with a pause in it tells nothing of either kind.
        """
        trained_s = max(step_s - paused_s, 0.0)
        self.trained_s += trained_s
        self.paused_s += min(paused_s, step_s)
        self._steps += 1
        self._last.append(step_s)
        if paused_s > 0 or self._steps <= _WARM_UP_STEPS:
            return 0.0
        if not saving:
            self._usual.append(trained_s)
            return 0.0
        return trained_s - fmean(self._usual) if self._usual else 0.0

    @property
    def usual_step_s(self) -> float | None:
        """The mean step while nothing is saved; None before the first such step."""
        return fmean(self._usual) if self._usual else None

    @property
    def pause_after_s(self) -> float:
        """How long a step may wait for others before the wait is a pause."""
        return max(_PATIENCE_S, _PATIENCE_STEPS * median(self._last)) if self._last else _PATIENCE_S


class SaveCost:
    """Training time lost to saves: the stall at the cut, and slower steps while the save is written.

    `stalled_s` is a counter: the highest that the sum of all delays has reached, so that steps which happen to be fast
    are set off against those which happen to be slow.
    """

    def __init__(self) -> None:
        self.stalled_s = 0.0
        self._delays_s = 0.0

    def note(self, delay_s: float) -> None:
        """Add what one step was delayed by."""
        self._delays_s += delay_s
        self.stalled_s = max(self.stalled_s, self._delays_s)
