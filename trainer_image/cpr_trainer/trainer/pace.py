"""The pace of training and the cost of saves: pure sums over steps. All times are in seconds."""

from __future__ import annotations

from collections import deque
from statistics import fmean, median

#: Steps without a save that the usual step is the mean of; two merges of the scores are among them.
_USUAL = 64
#: The first steps of a process, which fill caches, are not usual ones.
_WARM_UP_STEPS = 3
#: A wait is a pause once it lasts this many seconds, or this many times the median of the last steps if that is longer.
_PAUSE_S, _PAUSE_STEPS, _LAST = 1.0, 5, 9


class Pace:
    """Counts the steps of one process. `trained_s` is the time of all steps without the pauses in them."""

    def __init__(self) -> None:
        self.trained_s = 0.0
        self.paused_s = 0.0
        self._steps = 0
        self._usual: deque[float] = deque(maxlen=_USUAL)
        self._last: deque[float] = deque(maxlen=_LAST)

    def note(self, step_s: float, paused_s: float, *, saving: bool) -> float:
        """Count a step of `step_s`, `paused_s` of it a pause, and return its delay by a save.

        The delay is 0 unless `saving`. It is the difference to the usual step and may be negative: only sums over many
        steps are meaningful. A step with a pause counts neither as usual nor as delayed.
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
        """The mean step without a save; None before the first one."""
        return fmean(self._usual) if self._usual else None

    @property
    def pause_after_s(self) -> float:
        """The time after which a step's wait for others is a pause."""
        return max(_PAUSE_S, _PAUSE_STEPS * median(self._last)) if self._last else _PAUSE_S


class SaveCost:
    """Training time lost to saves: the stall at the cut, and slower steps while the save is written.

    `stalled_s` is a counter, the maximum of the sum of all delays: fast steps offset slow ones.
    """

    def __init__(self) -> None:
        self.stalled_s = 0.0
        self._delays_s = 0.0

    def note(self, delay_s: float) -> None:
        """Add the delay of one step."""
        self._delays_s += delay_s
        self.stalled_s = max(self.stalled_s, self._delays_s)
