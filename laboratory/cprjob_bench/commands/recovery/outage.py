"""How long training stood still after a kill. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from statistics import quantiles

#: So many steps must follow before a pause counts as the longest one.
FOLLOWING_STEPS = 20
_PERCENTILES = 100


def pause_s(ends_s: Sequence[float], killed_s: float) -> float | None:
    """Return the seconds from a kill, at `killed_s`, to the end of the step that ended the pause.

    ends_s: when each step ended, ascending. The pause is the longest time between two of them, the first of which may
    be the last before the kill. None while too few steps have followed it.
    """
    first = max(bisect_right(ends_s, killed_s) - 1, 0)
    pauses = [(later - earlier, place) for place, (earlier, later) in enumerate(pairwise(ends_s[first:]), first + 1)]
    if not pauses:
        return None
    _, resumed = max(pauses)
    return ends_s[resumed] - killed_s if len(ends_s) - resumed > FOLLOWING_STEPS else None


def percentile(seconds: Sequence[float], place: int) -> float:
    """Return a percentile of the runs, between those that are next to it. Of one run it is that run."""
    if len(seconds) == 1:
        return seconds[0]
    return quantiles(seconds, n=_PERCENTILES, method="inclusive")[place - 1]
