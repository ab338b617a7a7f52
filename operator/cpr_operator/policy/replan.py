"""When a plan's figures have moved far enough to plan anew: against those of the plan in force, so nothing flaps."""

from __future__ import annotations

from collections.abc import Mapping

#: A figure that moved by more than this part of itself makes a new plan.
STEP = 0.25
#: Changes below this are noise: a hundredth of a second, of a sample or of the job.
NOISE = 1e-2


def moved(old: Mapping[str, float], new: Mapping[str, float]) -> bool:
    """Whether any of a plan's figures has moved since the plan in force, whose figures are `old`."""
    if old.keys() != new.keys():
        return True
    return any(abs(new[name] - old[name]) > max(STEP * abs(old[name]), NOISE) for name in new)


def steady_s(beta_s: float, left_s: float, total_s: float) -> float:
    """Seconds of training without a failure in which no figure moves: the belief in the rate, and what is left."""
    return min(STEP * beta_s, max(STEP * left_s, NOISE * total_s))
