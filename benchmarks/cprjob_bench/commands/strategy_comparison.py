"""The runs of `cprjob bench priority`, and the comparison of strategies and predictors over all runs. Pure.

For each seed there is a run without failures, and one for each strategy with the same failures. All strategies write
equally many rows, except Anchors: full saves as rare as those of a strategy, and nothing in between. Failures follow
the emulation of CPR (Maeng et al., MLSys 2021): each takes half of the shards, at a random time.

Runs of one seed share their data, first values and failures. Strategies are therefore compared seed by seed, and only
seeds are independent. Intervals are Student's, of the mean over seeds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import correlation, fmean, stdev
from typing import Literal, get_args

from cpr_contract.choices import Strategy
from cprjob_bench.bench_documents import Failure, Saving, SavingExperiment, SavingTrial

ComparedStrategy = Strategy | Literal["Anchors"]

FULL: Strategy = "Full"
#: The baseline without priority saves: it writes fewest rows, and loses the same samples as the strategies.
ANCHORS: ComparedStrategy = "Anchors"
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)


@dataclass(frozen=True, slots=True)
class Design:
    """Runs in their order. runs[i] is the (seed, strategy) of trial i; None is the run without failures."""

    runs: tuple[tuple[int, ComparedStrategy | None], ...]
    experiment: SavingExperiment

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each run."""
        return tuple(f"seed {seed}, {strategy or 'no failures'}" for seed, strategy in self.runs)


def design(saving: Saving, failures: int, seeds: range, shards: int) -> Design:
    """Return the runs over all seeds, with the saves of `saving`. Equal arguments give equal failures."""
    strategies: dict[ComparedStrategy, Saving] = {name: replace(saving, strategy=name) for name in STRATEGIES}
    strategies[ANCHORS] = replace(saving, strategy=FULL, interval=saving.interval * saving.anchors)
    runs: list[tuple[int, ComparedStrategy | None]] = []
    trials: list[SavingTrial] = []
    for seed in seeds:
        drawn = draw_failures(failures, shards, random.Random(seed))
        runs.append((seed, None))
        trials.append(SavingTrial(seed))
        for strategy, saves in strategies.items():
            runs.append((seed, strategy))
            trials.append(SavingTrial(seed, replace(saves, failures=drawn)))
    return Design(tuple(runs), SavingExperiment(shards, tuple(trials)))


def draw_failures(count: int, shards: int, rng: random.Random) -> tuple[Failure, ...]:
    """Return failures at random times, uniform over the run, each of half of the shards."""
    hit = -(-shards // 2)
    times = sorted(1 - rng.random() for _ in range(count))  # in (0, 1]
    return tuple(Failure(tuple(sorted(rng.sample(range(shards), hit))), time) for time in times)


CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Run:
    """A run with failures. auc_drop: from the run of the same seed without failures; positive is worse.

    pls: fraction of lost samples, as charged by the ledger. plu: fraction of lost row updates.
    """

    seed: int
    strategy: ComparedStrategy
    auc: float
    auc_drop: float
    pls: float
    plu: float
    lost_row_updates: int
    rows_written: int
    tracker_bytes: int


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over seeds with its standard error and 95 % confidence interval."""

    mean: float
    error: float
    low: float
    high: float

    @property
    def distinguishable(self) -> bool:
        """True if 0 is outside the interval."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, slots=True)
class Score:
    """The result of one strategy.

    against_full: its AUC drop minus that of Full; negative is better; None for Full itself.
    against_anchors: the same for Anchors, which loses the same samples; None for Full too, which
    loses fewer.
    """

    strategy: ComparedStrategy
    auc_drop: Mean
    against_full: Mean | None
    against_anchors: Mean | None
    lost_row_updates: Mean
    pls: float
    plu: float
    rows_written: float
    tracker_bytes: int


@dataclass(frozen=True, slots=True)
class Predictor:
    """The prediction of the AUC drop by one metric, as a line through the origin.

    slope: AUC per unit. correlation: Pearson's over all runs, None if the metric is constant.
    error: root mean square error on seeds outside the fit.
    """

    slope: float
    correlation: float | None
    error: float


@dataclass(frozen=True, slots=True)
class Study:
    """The result of all runs.

    best, second: the strategies with the least and the second least mean AUC drop, and their
    margin. Anchors is excluded, because it writes fewer rows.
    samples, updates: the fractions of lost samples and of lost row updates as predictors.
    gain: the mean over seeds of the squared error by lost samples minus that by lost row updates;
    above 0, updates predict better.
    """

    runs: tuple[Run, ...]
    scores: tuple[Score, ...]
    best: ComparedStrategy
    second: ComparedStrategy
    margin: Mean
    samples: Predictor
    updates: Predictor
    gain: Mean


def study(runs: Sequence[Run]) -> Study:
    """Compare all strategies over at least two seeds."""
    by_strategy: dict[ComparedStrategy, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        by_strategy.setdefault(run.strategy, []).append(run)
    scores = tuple(_score(mine, by_strategy[FULL], by_strategy[ANCHORS]) for mine in by_strategy.values())
    strategies = (score for score in scores if score.strategy != ANCHORS)
    best, second, *_ = sorted(strategies, key=lambda score: score.auc_drop.mean)
    margin = _difference(by_strategy[second.strategy], by_strategy[best.strategy])
    return Study(
        runs=tuple(runs),
        scores=scores,
        best=best.strategy,
        second=second.strategy,
        margin=margin,
        samples=_predictor(runs, _pls),
        updates=_predictor(runs, _plu),
        gain=_gain(runs),
    )


def mean_of(values: Sequence[float]) -> Mean:
    """Return the mean of at least two independent values."""
    mean, error = fmean(values), stdev(values) / math.sqrt(len(values))
    half = _quantile(len(values) - 1) * error
    return Mean(mean, error, mean - half, mean + half)


def _score(mine: Sequence[Run], full: Sequence[Run], anchors: Sequence[Run]) -> Score:
    strategy = mine[0].strategy
    return Score(
        strategy=strategy,
        auc_drop=mean_of([run.auc_drop for run in mine]),
        against_full=None if strategy == FULL else _difference(mine, full),
        against_anchors=None if strategy in {FULL, ANCHORS} else _difference(mine, anchors),
        lost_row_updates=mean_of([run.lost_row_updates for run in mine]),
        pls=fmean(run.pls for run in mine),
        plu=fmean(run.plu for run in mine),
        rows_written=fmean(run.rows_written for run in mine),
        tracker_bytes=mine[0].tracker_bytes,
    )


def _difference(one: Sequence[Run], other: Sequence[Run]) -> Mean:
    """Return the mean of one strategy's AUC drops minus another's, seed by seed."""
    return mean_of([mine.auc_drop - theirs.auc_drop for mine, theirs in zip(one, other, strict=True)])


def _pls(run: Run) -> float:
    return run.pls


def _plu(run: Run) -> float:
    return run.plu


def _predictor(runs: Sequence[Run], metric: Callable[[Run], float]) -> Predictor:
    errors = [error for seed in _seeds(runs) for error in _squared_errors(runs, metric, seed)]
    return Predictor(_slope(runs, metric), _correlation(runs, metric), math.sqrt(fmean(errors)))


def _gain(runs: Sequence[Run]) -> Mean:
    """Return the mean of the squared error by lost samples minus that by lost row updates, seed by seed."""
    return mean_of(
        [fmean(_squared_errors(runs, _pls, seed)) - fmean(_squared_errors(runs, _plu, seed)) for seed in _seeds(runs)]
    )


def _squared_errors(runs: Sequence[Run], metric: Callable[[Run], float], seed: int) -> list[float]:
    """Return the squared errors on one seed's runs of a line fitted to all other seeds."""
    slope = _slope([run for run in runs if run.seed != seed], metric)
    return [(run.auc_drop - slope * metric(run)) ** 2 for run in runs if run.seed == seed]


def _slope(runs: Sequence[Run], metric: Callable[[Run], float]) -> float:
    """Return the sum of drops divided by the sum of the metric.

    This is least squares through the origin for a variance that grows with the metric.
    """
    return math.fsum(run.auc_drop for run in runs) / math.fsum(metric(run) for run in runs)


def _correlation(runs: Sequence[Run], metric: Callable[[Run], float]) -> float | None:
    values, drops = [metric(run) for run in runs], [run.auc_drop for run in runs]
    varied = min(values) < max(values) and min(drops) < max(drops)
    return correlation(values, drops) if varied else None


def _seeds(runs: Sequence[Run]) -> list[int]:
    return sorted({run.seed for run in runs})


def _quantile(degrees: int) -> float:
    """Return the two-sided 95 % quantile of Student's t with these degrees of freedom."""
    from scipy.stats import t  # noqa: PLC0415 -- slow to load, and only this command needs it

    return float(t.ppf((1 + CONFIDENCE) / 2, degrees))
