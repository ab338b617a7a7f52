"""The sensitivity: AUC lost per unit of the portion of lost samples (PLS), from pairs of runs. Pure.

A pair is a run with injected losses and the run of the same seed without: the same samples in the
same order, and the same first values. At a PLS of 0 both are the same run, so the line goes through
the origin. An intercept would only be noise that distorts every budget.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Pair:
    """The cost of losses in one run, relative to the run without losses; positive is worse."""

    seed: int
    level: float
    pls: float
    auc: float
    auc_drop: float
    log_loss_rise: float
    lost_row_updates: int


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """The slope with its 95 % confidence interval, in AUC for a PLS of 1.

    worst: the largest slope of any single pair. The interval is that of the mean, and single jobs
    scatter around it.
    """

    estimate: float
    low: float
    high: float
    worst: float
    seeds: int

    @property
    def distinguishable(self) -> bool:
        """Whether the losses certainly cost something: the interval lies above 0."""
        return self.low > 0

    @property
    def to_paste(self) -> float | None:
        """The upper end of the interval, rounded up to two digits to be safe. None if it is not above 0."""
        return round_up(self.high) if self.high > 0 else None


def measure(pairs: Sequence[Pair]) -> Sensitivity:
    """The sensitivity over at least two seeds; every pair has a PLS above 0.

    Runs of one seed share their data and the run they are compared with, so only seeds count as
    independent. Each seed gives one slope, and the interval is Student's of their mean. A seed's
    slope is the sum of its drops over the sum of its PLS, which is least squares through the origin
    for a variance that grows with the PLS.
    """
    slopes = [_slope(pair for pair in pairs if pair.seed == seed) for seed in sorted({pair.seed for pair in pairs})]
    estimate = fmean(slopes)
    half = _quantile(len(slopes) - 1) * stdev(slopes) / math.sqrt(len(slopes))
    worst = max(pair.auc_drop / pair.pls for pair in pairs)
    return Sensitivity(estimate, estimate - half, estimate + half, worst, len(slopes))


def round_up(value: float, digits: int = 2) -> float:
    """The smallest number with `digits` digits that is not below `value`, which is above 0."""
    places = digits - 1 - math.floor(math.log10(value))
    scaled = math.ceil(value * 10.0**places * (1 - 1e-12))  # keeps a number with so few digits as it is
    return float(f"{scaled}e{-places}")


def _slope(pairs: Iterable[Pair]) -> float:
    drops, portions = zip(*((pair.auc_drop, pair.pls) for pair in pairs), strict=True)
    return math.fsum(drops) / math.fsum(portions)


def _quantile(degrees: int) -> float:
    """Student's t that 95 % of a distribution of so many degrees of freedom lie within."""
    from scipy.stats import t  # noqa: PLC0415 -- slow to load, and only this command needs it

    return float(t.ppf((1 + CONFIDENCE) / 2, degrees))
