"""The line about training that each trainer logs once a minute, and at its last step. Pure."""

from __future__ import annotations

from datetime import timedelta

from cpr_contract.reports import TrainerReport

EVERY_S = 60.0


class ProgressTimer:
    """Says when the next line is due. Times are seconds of one clock; the first line comes a minute after the start."""

    def __init__(self, now: float) -> None:
        self._next_s = now + EVERY_S

    def due(self, now: float) -> bool:
        """Whether a minute has passed since the last line; the next one is then due in a minute."""
        if now < self._next_s:
            return False
        self._next_s = now + EVERY_S
        return True


def progress_line(report: TrainerReport) -> str:
    """Step, samples, speed, loss, AUC and the time left at this speed. Figures that are not known yet are left out."""
    parts = [f"step {report.step:,}", f"{report.samples:,} of {report.total_samples:,} samples"]
    if report.samples_per_s:
        parts.append(f"{report.samples_per_s:,.0f} samples/s")
    if report.loss is not None:
        parts.append(f"loss {report.loss:.4f}")
    if report.auc is not None:
        parts.append(f"AUC {report.auc:.4f}")
    if report.evaluation is not None and report.evaluation.auc is not None:
        parts.append(f"held-out AUC {report.evaluation.auc:.4f} at step {report.evaluation.step:,}")
    if report.samples_per_s:
        left_s = max(report.total_samples - report.samples, 0) / report.samples_per_s
        parts.append(f"ETA {timedelta(seconds=round(left_s))}")
    return ", ".join(parts)
