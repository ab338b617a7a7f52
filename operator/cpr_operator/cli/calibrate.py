"""`cprjob calibrate`: how much AUC lost samples cost, measured on the user's model and data."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rich.console import Console
from rich.table import Table

from cpr_contract.requests import Experiment, Outcome, ShardLoss, Trial
from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.api.rules.job import MOST_PORTION
from cpr_operator.api.snapshots import AccuracyBudget
from cpr_operator.api.validate import parse_spec, validate
from cpr_operator.cli.asking import TrialError, progress, run_experiment, teller
from cpr_operator.cli.console import OptionError, check_plot
from cpr_operator.cli.document import InvalidDocumentError, read_single, set_value

# Which runs a calibration makes: for each seed one without losses, and one for each level with losses drawn at random.
#
# Pure. A level is a portion of lost samples (PLS). Losses follow the emulation of CPR (Maeng et al., MLSys 2021): two
# failures a run, each of half of the shards. Each sends its shards back by the same age, so that together they lose
# exactly the level; when they happen, and to which shards, is random, but no shard loses a sample twice.


FAILURES = 2


@dataclass(frozen=True, slots=True)
class Design:
    """Runs in their order. runs[i] is the (seed, level) of trial i; a level of 0 is the run without losses."""

    runs: tuple[tuple[int, float], ...]
    experiment: Experiment

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each run."""
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
    """The runs over all seeds; the same arguments give the same losses."""
    runs: list[tuple[int, float]] = []
    trials: list[Trial] = []
    for seed in seeds:
        rng = random.Random(seed)
        for level in (0.0, *levels):
            runs.append((seed, level))
            trials.append(Trial(seed, draw_losses(level, shards, rng) if level else ()))
    return Design(tuple(runs), Experiment(shards, tuple(trials)))


def draw_losses(level: float, shards: int, rng: random.Random) -> tuple[ShardLoss, ...]:
    """Losses that add up to `level`, uniform among all that do not overlap in time; 0 < level <= 0.5."""
    hit = -(-shards // 2)
    age = level * shards / (FAILURES * hit)
    # Points drawn on what the ages leave of the run, and moved apart by the ages before them.
    points = sorted(rng.uniform(0, 1 - FAILURES * age) for _ in range(FAILURES))
    return tuple(
        ShardLoss(tuple(sorted(rng.sample(range(shards), hit))), point + n * age, min(point + (n + 1) * age, 1.0))
        for n, point in enumerate(points)
    )


# The sensitivity: AUC lost per unit of the portion of lost samples (PLS), from pairs of runs. Pure.
#
# A pair is a run with injected losses and the run of the same seed without: the same samples in the
# same order, and the same first values. At a PLS of 0 both are the same run, so the line goes through
# the origin. An intercept would only be noise that distorts every budget.


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


# The result of a calibration, for people and for programs.


def as_json(job: str, shards: int, pairs: Sequence[Pair], found: Sensitivity) -> dict[str, Any]:
    """Plain JSON values. `sensitivity_to_paste` is null if the data shows no loss at all."""
    return {
        "job": job,
        "shards": shards,
        "failures_per_run": FAILURES,
        "confidence": CONFIDENCE,
        "pairs": [asdict(pair) for pair in pairs],
        "sensitivity": {**asdict(found), "distinguishable": found.distinguishable},
        "sensitivity_to_paste": found.to_paste,
    }


def print_calibration(console: Console, pairs: Sequence[Pair], found: Sensitivity, budget: AccuracyBudget) -> None:
    """Print a line for each level, the sensitivity, and what to write into the manifest."""
    console.print(_levels(pairs), "", sep="\n", highlight=False)
    for line in (_finding(found), *_advice(found, budget)):
        console.print(line, highlight=False, soft_wrap=True)


def _levels(pairs: Sequence[Pair]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("lost samples (PLS)", "runs", "AUC drop, mean", "least", "most", "drop / PLS", "log loss rise, mean"):
        table.add_column(title, header_style="dim", justify="right")
    for level in sorted({pair.level for pair in pairs}):
        here = [pair for pair in pairs if pair.level == level]
        drops, portion = [pair.auc_drop for pair in here], fmean(pair.pls for pair in here)
        table.add_row(
            f"{portion:.4f}",
            str(len(here)),
            *(f"{drop:+.5f}" for drop in (fmean(drops), min(drops), max(drops))),
            f"{fmean(drops) / portion:+.4f}",
            f"{fmean(pair.log_loss_rise for pair in here):+.5f}",
        )
    return table


def _finding(found: Sensitivity) -> str:
    interval = f"{CONFIDENCE:.0%} interval {found.low:.2g} to {found.high:.2g}, over {found.seeds} seeds"
    measured = f"[bold]sensitivity {found.estimate:.2g}[/bold] AUC per unit of PLS ({interval}"
    finding = f"{measured}; the worst single run {found.worst:.2g})"
    if found.distinguishable:
        return finding
    return f"{finding}\n[yellow]not distinguishable from 0[/yellow]: more --seeds or more samples narrow the interval"


def _advice(found: Sensitivity, budget: AccuracyBudget) -> tuple[str, ...]:
    """What to paste and what it means. Without a value above 0 there is nothing to paste."""
    sensitivity = found.to_paste
    if sensitivity is None:
        return ("Losses did not lower AUC here, so there is no value to paste. State portionOfLostSamples instead.",)
    limit = "..." if budget.auc_drop is None else f"{budget.auc_drop.limit:g}"
    advice = (
        "Paste this into the manifest (the upper end of the interval, to be safe):",
        f"  accuracyBudget: {{type: AUCDrop, aucDrop: {{limit: {limit}, sensitivity: {sensitivity:g}}}}}",
    )
    if budget.auc_drop is None:
        cost = sensitivity * budget.portion
        stated = f"portionOfLostSamples of {budget.portion:g}"
        return (*advice, f"With it, the manifest's {stated} amounts to an AUC drop of {cost:.2g}.")
    allowed = budget.auc_drop.limit / sensitivity
    return (*advice, f"With it, the manifest's limit of {limit} allows {allowed:.2g} of all samples to be lost.")


# A plot of a calibration: its pairs of runs, and the line through them.


def plot(path: Path, pairs: Sequence[Pair], found: Sensitivity, title: str) -> None:
    """Draw AUC drop over PLS into a file, whose ending names the format."""
    from matplotlib.figure import Figure  # noqa: PLC0415 -- slow to load, and only plots need it

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    furthest = max(pair.pls for pair in pairs)
    ends = (0.0, furthest)
    axes.plot([pair.pls for pair in pairs], [pair.auc_drop for pair in pairs], ".", label="one run with losses")
    axes.plot(ends, [found.estimate * end for end in ends], color="tab:red", label=f"sensitivity {found.estimate:.2g}")
    band = f"{CONFIDENCE:.0%} interval of the mean, {found.low:.2g} to {found.high:.2g}"
    low, high = ([bound * end for end in ends] for bound in (found.low, found.high))
    axes.fill_between(ends, low, high, color="tab:red", alpha=0.15, linewidth=0, label=band)
    axes.axhline(0, color="black", linewidth=0.5)
    axes.set(title=title, xlabel="fraction of lost samples (PLS)", ylabel="AUC drop against the run without losses")
    axes.legend(loc="upper left", frameon=False)
    figure.savefig(path, dpi=150)


# The command: reads the file, has the trainer image run the trials, prints the result.


@dataclass(frozen=True, slots=True)
class CalibrateOptions:
    """What the command line asks for.

    seeds: the number of seeds, counted from the job's own. samples: replaces the job's length.
    """

    file: Path
    levels: tuple[float, ...]
    seeds: int
    samples: int | None
    json: bool
    plot: Path | None


def calibrate(options: CalibrateOptions, out: Console, err: Console, environment: Mapping[str, str]) -> None:
    """Make the runs and print the sensitivity; progress goes to `err`.

    Raises OptionError, DocumentError and InvalidDocumentError before anything runs, TrialError later.
    """
    if options.plot is not None:
        check_plot(options.plot)
    document = _read(options.file, options.samples)
    spec = parse_spec(document["spec"])
    job = to_job_spec(spec, uid="calibration", name=document["metadata"]["name"])
    seeds = range(spec.data.seed, spec.data.seed + options.seeds)
    planned = design(options.levels, seeds, spec.shards.replicas)
    with (
        progress(err) as bar,
        closing(run_experiment(job, planned.experiment, environment, teller(bar, planned.names))) as outcomes,
    ):
        pairs = pair(planned, outcomes)
    sensitivity = measure(pairs)
    if options.json:
        out.print_json(json.dumps(as_json(job.job_name, spec.shards.replicas, pairs, sensitivity)))
    else:
        print_calibration(out, pairs, sensitivity, spec.accuracy_budget)
    if options.plot is not None:
        plot(options.plot, pairs, sensitivity, title=f"{job.job_name}: AUC drop by lost samples")


def pair(planned: Design, outcomes: Iterable[Outcome]) -> tuple[Pair, ...]:
    """Each run with losses, paired with the run of its seed without.

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


def _read(file: Path, samples: int | None) -> dict[str, Any]:
    document = read_single(file)
    if samples is not None:
        set_value(document, ("data", "samples"), samples)
        set_value(document, ("data", "epochs"), None)
    invalid = validate(document)
    if invalid:
        raise InvalidDocumentError(invalid)
    return dict(document)
