"""A plot of a calibration: its pairs of runs, and the line through them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cpr_operator.cli.calibrate.sensitivity import CONFIDENCE, Pair, Sensitivity


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
