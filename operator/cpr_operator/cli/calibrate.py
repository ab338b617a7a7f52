"""`cprjob calibrate`: measures on the user's model and data how much AUC lost samples cost."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Column

from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.api.snapshots_spec import AccuracyBudget
from cpr_operator.api.validate import parse_document
from cpr_operator.cli.command_options import check_plot
from cpr_operator.cli.console import plain_table
from cpr_operator.cli.document import read_single, set_value
from cpr_operator.cli.sensitivity import CONFIDENCE, FAILURES, Pair, Sensitivity, design, measure, pair_runs
from cpr_operator.cli.trainer_process import progress_bar, run_experiment, trial_progress


@dataclass(frozen=True, slots=True)
class CalibrateOptions:
    """The options of the command.

    seeds: the number of seeds, from the job's own. samples: replaces the job's length.
    """

    file: Path
    levels: tuple[float, ...]
    seeds: int
    samples: int | None
    json: bool
    plot: Path | None


def calibrate(options: CalibrateOptions, out: Console, err: Console, environment: Mapping[str, str]) -> None:
    """Make the runs and print the sensitivity; progress goes to `err`.

    Raises OptionError, DocumentError and InvalidSpecError before anything runs, TrialError later.
    """
    if options.plot is not None:
        check_plot(options.plot)
    document = read_single(options.file)
    if options.samples is not None:
        set_value(document, ("data", "samples"), options.samples)
        set_value(document, ("data", "epochs"), None)
        set_value(document, ("data", "follow"), None)
    spec = parse_document(document)
    job = to_job_spec(spec, uid="calibration", name=document["metadata"]["name"])
    seeds = range(spec.data.seed, spec.data.seed + options.seeds)
    planned = design(options.levels, seeds, spec.shards.replicas)
    with (
        progress_bar(err) as bar,
        closing(run_experiment(job, planned.experiment, environment, trial_progress(bar, planned.names))) as outcomes,
    ):
        pairs = pair_runs(planned, outcomes)
    sensitivity = measure(pairs)
    if options.json:
        out.print_json(json.dumps(as_json(job.job_name, spec.shards.replicas, pairs, sensitivity)))
    else:
        print_calibration(out, pairs, sensitivity, spec.accuracy_budget)
    if options.plot is not None:
        plot(options.plot, pairs, sensitivity, title=f"{job.job_name}: AUC drop by lost samples")


def as_json(job: str, shards: int, pairs: Sequence[Pair], found: Sensitivity) -> dict[str, Any]:
    """Return plain JSON values. `sensitivity_to_paste` is null if losses did not lower AUC."""
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
    """Print a line for each level, the sensitivity, and the lines for the manifest."""
    titles = ("lost samples (PLS)", "runs", "AUC drop, mean", "least", "most", "drop / PLS", "log loss rise, mean")
    table = plain_table(*(Column(title, justify="right") for title in titles))
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
    console.print(table, "", sep="\n", highlight=False)
    interval = f"{CONFIDENCE:.0%} interval {found.low:.2g} to {found.high:.2g}, over {found.seeds} seeds"
    measured = f"[bold]sensitivity {found.estimate:.2g}[/bold] AUC per unit of PLS ({interval}"
    finding = [f"{measured}; the worst single run {found.worst:.2g})"]
    if not found.distinguishable:
        finding.append("[yellow]not distinguishable from 0[/yellow]: more --seeds or more samples narrow the interval")
    for line in (*finding, *_advice(found, budget)):
        console.print(line, highlight=False, soft_wrap=True)


def plot(path: Path, pairs: Sequence[Pair], found: Sensitivity, title: str) -> None:
    """Draw AUC drop over PLS into a file in the format of its ending."""
    from matplotlib.figure import Figure  # noqa: PLC0415 -- slow to import

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


def _advice(found: Sensitivity, budget: AccuracyBudget) -> tuple[str, ...]:
    """Return the lines for the manifest, and their meaning. There are none without a sensitivity above 0."""
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
