"""The result of the bench, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.table import Table

from cprjob_bench.commands.priority.design import ANCHORS, FULL
from cprjob_bench.commands.priority.verdict import CONFIDENCE, Mean, Score, Study
from cprjob_bench.commands.result import Result, table

_TITLES = (
    "strategy",
    "lost samples",
    "lost updates",
    "± se",
    "of all",
    "AUC drop",
    "± se",
    "gain over Full",
    "± se",
    "rows written",
)


def result(data: str, found: Study) -> Result:
    """All figures of the study, and a line for each strategy, then the comparisons; `data` names the file."""
    return Result(_document(data, found), _lines(found))


def _document(data: str, found: Study) -> dict[str, Any]:
    return {
        "data": data,
        "confidence": CONFIDENCE,
        "seeds": len({run.seed for run in found.runs}),
        "strategies": {score.strategy: _as_json(score) for score in found.scores},
        "best": found.best,
        "second": found.second,
        "margin": _mean(found.margin),
        "significant": found.margin.distinguishable,
        "predictors": {
            "portion_of_lost_samples": asdict(found.samples),
            "portion_of_lost_updates": asdict(found.updates),
            "gain_of_updates": _mean(found.gain),
        },
        "runs": [asdict(run) for run in found.runs],
    }


def _lines(found: Study) -> Iterator[str | Table]:
    shown = table(*_TITLES)
    for score in found.scores:
        shown.add_row(*_cells(score))
    yield shown
    yield from ("", _winner(found), *_comparisons(found), *_predictors(found))


def _as_json(score: Score) -> dict[str, Any]:
    return {
        "lost_row_updates": _mean(score.lost_row_updates),
        "portion_of_lost_updates": score.plu,
        "portion_of_lost_samples": score.pls,
        "auc_drop": _mean(score.auc_drop),
        "auc_drop_against_full": None if score.against_full is None else _mean(score.against_full),
        "auc_drop_against_anchors": None if score.against_anchors is None else _mean(score.against_anchors),
        "rows_written": score.rows_written,
        "tracker_bytes": score.tracker_bytes,
    }


def _mean(value: Mean) -> dict[str, Any]:
    return {**asdict(value), "distinguishable": value.distinguishable}


def _cells(score: Score) -> Iterator[str]:
    yield from (score.strategy, f"{score.pls:.4f}")
    yield from (f"{score.lost_row_updates.mean:,.0f}", f"{score.lost_row_updates.error:,.0f}", f"{score.plu:.4f}")
    yield from (f"{score.auc_drop.mean:.6f}", f"{score.auc_drop.error:.6f}")
    full = score.against_full
    yield from ("", "") if full is None else (f"{-full.mean:+.6f}", f"{full.error:.6f}")
    yield f"{score.rows_written:,.0f}"


def _winner(found: Study) -> str:
    sure = "significant" if found.margin.distinguishable else "not significant"
    return (
        f"[bold]{found.best} loses the least AUC[/bold], {found.margin.mean:.2g} less than {found.second} "
        f"({_interval(found.margin)}): {sure}."
    )


def _comparisons(found: Study) -> Iterator[str]:
    for score in found.scores:
        for other, difference in ((FULL, score.against_full), (ANCHORS, score.against_anchors)):
            if difference is not None:
                yield f"{_against(score.strategy, other, difference)} ({_interval(difference)})."


def _against(strategy: str, other: str, difference: Mean) -> str:
    if not difference.distinguishable:
        return f"The difference between {strategy} and {other} is not significant: {difference.mean:+.2g} AUC drop"
    better = "better" if difference.mean < 0 else "worse"
    return f"{strategy} is {better} than {other}: {difference.mean:+.2g} AUC drop"


def _predictors(found: Study) -> Iterator[str]:
    for name, figure in (("samples", found.samples), ("row updates", found.updates)):
        correlation = "-" if figure.correlation is None else f"{figure.correlation:.2f}"
        yield (
            f"Predicted from the fraction of lost {name}: {figure.slope:.3g} AUC per unit, "
            f"correlation {correlation}, error {figure.error:.2g} on held-out seeds."
        )
    if not found.gain.distinguishable:
        yield "Neither predicts the AUC drop significantly better than the other."
    else:
        better = "row updates" if found.gain.mean > 0 else "samples"
        yield f"The fraction of lost {better} predicts the AUC drop significantly better."


def _interval(value: Mean) -> str:
    return f"{CONFIDENCE:.0%} interval {value.low:+.2g} to {value.high:+.2g}"
