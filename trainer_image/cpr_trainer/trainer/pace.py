"""How fast training goes, and what saves cost it: pure sums over steps."""

from __future__ import annotations

#: Weight of the newest step in the usual step time.
_BLEND = 0.05
#: Steps after a cut that may wait for a shard's copy: those that were on their way.
_STALLED_STEPS = 3


class Pace:
    """Times in seconds. `trained_s` leaves out pauses; `stalled_s` is what steps right after a cut took too long."""

    def __init__(self) -> None:
        self.trained_s = 0.0
        self.paused_s = 0.0
        self.stalled_s = 0.0
        self._usual_s: float | None = None
        self._steps_after_cut = _STALLED_STEPS

    def note(self, step_s: float, paused_s: float, *, cut: bool) -> None:
        """Count a step that took `step_s`, `paused_s` of it waiting; `cut` says whether it was a cut."""
        trained_s = max(step_s - paused_s, 0.0)
        self.trained_s += trained_s
        self.paused_s += paused_s
        usual_s = self._usual_s if self._usual_s is not None else trained_s
        if self._steps_after_cut < _STALLED_STEPS:
            self._steps_after_cut += 1
            self.stalled_s += max(trained_s - usual_s, 0.0)
        else:
            self._usual_s = usual_s + _BLEND * (trained_s - usual_s)
        if cut:
            self._steps_after_cut = 0

    @property
    def usual_step_s(self) -> float | None:
        """A running mean of the step time, None before the first step."""
        return self._usual_s
