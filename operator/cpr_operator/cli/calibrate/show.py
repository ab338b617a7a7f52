"""The result of a calibration, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from cpr_operator.api.snapshots import AccuracyBudget
from cpr_operator.cli.calibrate.design import FAILURES
from cpr_operator.cli.calibrate.sensitivity import CONFIDENCE, Pair, Sensitivity


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
