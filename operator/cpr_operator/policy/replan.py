"""Whether figures have changed enough for a new plan, compared with the plan in force so that nothing flaps."""

from __future__ import annotations

from collections.abc import Mapping

#: A relative change of any figure by more than this causes a new plan.
STEP = 0.25
#: Changes below this are noise, in the figure's own unit.
NOISE = 1e-2


def moved(old: Mapping[str, float], new: Mapping[str, float]) -> bool:
    """Whether any figure has changed enough since the plan in force, whose figures are `old`."""
    if old.keys() != new.keys():
        return True
    return any(abs(new[name] - old[name]) > max(STEP * abs(old[name]), NOISE) for name in new)


def steady_s(beta_s: float, left_s: float, total_s: float) -> float:
    """Seconds of training without a failure until the failure rate or the remaining training changes enough."""
    return min(STEP * beta_s, max(STEP * left_s, NOISE * total_s))
