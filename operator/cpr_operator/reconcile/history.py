"""How training went, for pictures: a bounded list of points, thinned when it is full."""

from __future__ import annotations

from collections.abc import Mapping

from cpr_operator.api.progress import PointFigures
from cpr_operator.api.status import MAX_HISTORY, Status

#: A job that never goes back has about so many points at its end. The rest of the list is for what it trains again.
POINTS = 80
#: The metric of a single label; with several labels it is LABEL.calibration.
CALIBRATION = "calibration"


def with_history(before: Status, status: Status) -> Status:
    """The status with one more point, if a report came in this pass and the job has trained on, or was rolled back."""
    progress = status.progress
    if progress.updated is None or progress.updated == before.progress.updated or not progress.total_samples:
        return status
    if status.history:
        further = progress.samples - status.history[-1].samples
        if 0 <= further * POINTS < progress.total_samples:
            return status
    points = status.history if len(status.history) < MAX_HISTORY else _thinned(status.history)
    return status.evolve(history=(*points, point(status, progress.updated)))


def point(status: Status, now: float) -> PointFigures:
    """How the job stands; figures have six digits, because many of them are kept."""
    progress, plan, budget = status.progress, status.plan, status.budget
    return PointFigures(
        time=round(now, 3),
        samples=progress.samples,
        samples_per_second=_short(progress.samples_per_second),
        loss=_short(progress.loss),
        logloss=_short(progress.logloss),
        auc=_short(progress.auc),
        calibration=_short(_calibration(progress.metrics)),
        spent=_short(budget.spent if budget else None),
        saved_samples=status.anchors[-1].samples if status.anchors else 0,
        interval_seconds=_short(plan.interval_seconds if plan else None),
        mode=plan.mode if plan else None,
        shards=len(status.shards),
        trainers=len(status.trainers),
        generation=status.counters.generation,
    )


def _thinned(points: tuple[PointFigures, ...]) -> tuple[PointFigures, ...]:
    """Every second point, the last one, and those at which a generation begins: a rollback stays where it was."""
    kept = [
        here
        for place, here in enumerate(points)
        if place % 2 == 0 or here.generation != points[place - 1].generation or place + 1 == len(points)
    ]
    return tuple(kept[-MAX_HISTORY + 1 :])


def _calibration(metrics: Mapping[str, float]) -> float | None:
    """Of the first label: a report names its figures in the order of the labels."""
    names = (name for name in metrics if name == CALIBRATION or name.endswith(f".{CALIBRATION}"))
    name = next(names, None)
    return None if name is None else metrics[name]


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")
