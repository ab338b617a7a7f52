"""The arithmetic of a calibration: the runs to make, and the sensitivity that follows from them.

For each seed there is a run without losses, and one for each level (a portion of lost samples, PLS) with losses as in
the emulation of CPR (Maeng et al., MLSys 2021): two failures a run, each of half of the shards (docs/calibration.md).
The sensitivity is the AUC lost per unit of PLS over all pairs of runs of one seed, with losses and without. The line
goes through the origin: an intercept would only be noise that distorts every budget.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from cpr_contract.requests import Experiment, Outcome, ShardLoss, Trial
from cpr_operator.api.rules.job_rules import MOST_PORTION
from cpr_operator.cli.command_errors import OptionError, TrialError

FAILURES = 2
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Design:
    """Runs in their order. runs[i] is the (seed, level) of trial i; a level of 0 is the run without losses."""

    runs: tuple[tuple[int, float], ...]
    experiment: Experiment

    @property
    def names(self) -> tuple[str, ...]:
        """Return the name of each run."""
        return tuple(f"seed {seed}, {f'PLS {level:g}' if level else 'no losses'}" for seed, level in self.runs)


def parse_levels(text: str) -> tuple[float, ...]:
    """Parse `0.05,0.1,0.2`; returned in ascending order. Raises OptionError."""
    try:
        levels = sorted({float(part) for part in text.split(",")})
    except ValueError:
        raise OptionError(f"--levels {text!r} is not a list of numbers such as 0.05,0.1,0.2") from None
    if not all(0 < level <= MOST_PORTION for level in levels):
        raise OptionError(f"--levels {text!r}: each must be above 0 and at most {MOST_PORTION}")
    return tuple(levels)


def design(levels: tuple[float, ...], seeds: range, shards: int) -> Design:
    """Return the runs over all seeds. The same arguments give the same losses."""
    runs: list[tuple[int, float]] = []
    trials: list[Trial] = []
    for seed in seeds:
        rng = random.Random(seed)
        for level in (0.0, *levels):
            runs.append((seed, level))
            trials.append(Trial(seed, draw_losses(level, shards, rng) if level else ()))
    return Design(tuple(runs), Experiment(shards, tuple(trials)))


def draw_losses(level: float, shards: int, rng: random.Random) -> tuple[ShardLoss, ...]:
    """Return losses that add up to `level` (0 < level <= 0.5), uniform among those that do not overlap in time."""
    hit = -(-shards // 2)
    age = level * shards / (FAILURES * hit)
    # Drawn on the run without the ages of all losses, then moved apart by the ages of earlier losses.
    points = sorted(rng.uniform(0, 1 - FAILURES * age) for _ in range(FAILURES))
    return tuple(
        ShardLoss(tuple(sorted(rng.sample(range(shards), hit))), point + n * age, min(point + (n + 1) * age, 1.0))
        for n, point in enumerate(points)
    )


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
    """The slope with the 95 % confidence interval of its mean, in AUC for a PLS of 1. worst: that of a single pair."""

    estimate: float
    low: float
    high: float
    worst: float
    seeds: int

    @property
    def distinguishable(self) -> bool:
        """Return whether the whole interval is above 0."""
        return self.low > 0

    @property
    def to_paste(self) -> float | None:
        """Return the upper end of the interval, rounded up to two digits. None if it is not above 0."""
        return round_up(self.high) if self.high > 0 else None


def measure(pairs: Sequence[Pair]) -> Sensitivity:
    """Return the sensitivity over at least two seeds. Every pair must have a PLS above 0.

    Runs of one seed share their data and the run they are compared with, so only seeds count as independent: each gives
    one slope, and the interval is Student's of their mean. A slope is the sum of the drops over the sum of the PLS,
    which is least squares through the origin for a variance that grows with the PLS.
    """
    from scipy.stats import t  # noqa: PLC0415 -- slow to import

    of_seed = [[pair for pair in pairs if pair.seed == seed] for seed in sorted({pair.seed for pair in pairs})]
    slopes = [math.fsum(pair.auc_drop for pair in own) / math.fsum(pair.pls for pair in own) for own in of_seed]
    estimate = fmean(slopes)
    quantile = float(t.ppf((1 + CONFIDENCE) / 2, len(slopes) - 1))
    half = quantile * stdev(slopes) / math.sqrt(len(slopes))
    worst = max(pair.auc_drop / pair.pls for pair in pairs)
    return Sensitivity(estimate, estimate - half, estimate + half, worst, len(slopes))


def round_up(value: float, digits: int = 2) -> float:
    """Return the smallest number with `digits` digits that is not below the positive `value`."""
    places = digits - 1 - math.floor(math.log10(value))
    scaled = math.ceil(value * 10.0**places * (1 - 1e-12))  # a number with these digits stays as it is
    return float(f"{scaled}e{-places}")


def pair_runs(planned: Design, outcomes: Iterable[Outcome]) -> tuple[Pair, ...]:
    """Pair each run with losses with the run of its seed without.

    Raises TrialError at the first run that cannot be compared.
    """
    without: dict[int, tuple[float, float]] = {}
    pairs = []
    for (seed, level), outcome in zip(planned.runs, outcomes, strict=True):
        if outcome.auc is None or outcome.log_loss is None:
            raise TrialError("AUC is not defined: all scored samples have the same label. Use more --samples.")
        if not level:
            without[seed] = (outcome.auc, outcome.log_loss)
            continue
        if not outcome.pls:
            raise TrialError(f"The run is too short to lose a fraction of {level} of its samples. Use higher --levels.")
        auc, log_loss = without[seed]
        drop, rise = auc - outcome.auc, outcome.log_loss - log_loss
        pairs.append(Pair(seed, level, outcome.pls, outcome.auc, drop, rise, outcome.lost_row_updates))
    return tuple(pairs)
