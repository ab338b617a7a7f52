"""The charts of a job, as JSON of Plotly (https://plotly.com/javascript/reference). The page adds the colours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import accumulate
from typing import Any, get_args

from cpr_operator.api.progress_status import HistoryPoint
from cpr_operator.cli.pictures.job_report import FailureOutcome, JobReport, outcome, speeds

#: With more members than this, only those that failed have a line.
MAX_LANES = 24
#: Colours of productive time, and of the causes of lost time in the order of `LostTime`.
TIME_COLOURS = (
    "#3d8bd9",
    "#8a94a0",
    "#a58a1f",
    "#19a3a8",
    "#e0702e",
    "#c65bb0",
    "#5c6773",
    "#b7bec7",
    "#2fa36b",
)
OVER_SAMPLES = "samples"
OVER_TIME = "time (UTC)"

Trace = dict[str, Any]
Value = Callable[[HistoryPoint], float | None]


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart. id: that of its element in the page. note: an explanation in a sentence."""

    id: str
    title: str
    note: str
    data: list[Trace]
    layout: dict[str, Any]


def charts(report: JobReport) -> tuple[Chart, ...]:
    """Return all charts, the same for every job. Charts of unknown values are empty."""
    line = partial(_line, report)
    validation = "By progressive validation over all samples but the first fifth."
    loss = [line("training loss", lambda each: each.loss), line("log loss", lambda each: each.logloss)]
    loss_note = "Over the last steps, and by progressive validation over all samples but the first fifth."
    calibration = _over_samples(report, "predicted / seen")
    best = {"xref": "paper", "x0": 0, "x1": 1, "y0": 1.0, "y1": 1.0, "line": {"width": 1, "dash": "dash"}}
    calibration["shapes"].append({"type": "line", **best})
    predicted = [line("calibration", lambda each: each.calibration)]
    members = [
        line("shards", lambda each: each.shards, step=True),
        line("trainers", lambda each: each.trainers, step=True),
    ]
    size = _over_samples(report, "members", rangemode="tozero")
    return (
        Chart("loss", "Loss", loss_note, loss, _over_samples(report, "nats")),
        Chart("auc", "AUC", validation, [line("AUC", lambda each: each.auc)], _over_samples(report, "AUC")),
        Chart("calibration", "Calibration", "Predictions over labels, in sum: 1 at best.", predicted, calibration),
        _speed(report),
        _budget(report),
        _ledger(report),
        _unsaved(report),
        _interval(report),
        _times(report),
        _failures(report),
        _members(report),
        Chart("replicas", "Size", "The number of members.", members, size),
    )


def _speed(report: JobReport) -> Chart:
    overall = _trace("overall", [each.samples for each in report.points], speeds(report.points))
    data = [_line(report, "while nothing is saved", lambda each: each.samples_per_second), overall]
    note = "The gap between the lines is the cost of saves and failures."
    return Chart("speed", "Speed", note, data, _over_samples(report, "samples / s", rangemode="tozero"))


def _budget(report: JobReport) -> Chart:
    budget = report.status.budget
    data = [_line(report, "lost", lambda each: each.spent, step=True)]
    if budget is not None:
        ends = [0, report.status.progress.total_samples]
        data.append(_trace("allowed", ends, [budget.limit, budget.limit], dash="dash"))
    layout = _over_samples(report, "portion of all samples", tickformat=".3~%", rangemode="tozero")
    return Chart("budget", "Accuracy budget", "Updates that failures have lost, and the limit.", data, layout)


def _ledger(report: JobReport) -> Chart:
    lost = [(f"shard/{index}", first, end) for index, ranges in enumerate(report.status.ledger.ranges)
            for first, end in ranges]  # fmt: skip
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": "lost",
            "y": [name for name, _, _ in lost],
            "base": [first for _, first, _ in lost],
            "x": [end - first for _, first, end in lost],
            "hovertemplate": "%{y}: %{x} samples from %{base}<extra></extra>",
        }
    ]
    layout = _layout(OVER_SAMPLES, "", type="category")
    layout["xaxis"]["range"] = [0, report.status.progress.total_samples or 1]
    layout["barmode"] = "overlay"
    note = "Samples that a shard has lost the updates of. The budget is charged for them."
    return Chart("ledger", "Ledger", note if lost else "No shard has lost updates.", data, layout)


def _unsaved(report: JobReport) -> Chart:
    data = [
        _line(report, "not in an anchor", lambda each: max(each.samples - each.saved_samples, 0)),
        {**_trace("anchors to go back to", [each.samples for each in report.status.anchors],
                  [0] * len(report.status.anchors)), "mode": "markers"},
    ]  # fmt: skip
    note = "Samples since the newest anchor, which a rollback would train again."
    return Chart("saves", "Saves", note, data, _over_samples(report, "samples", rangemode="tozero"))


def _interval(report: JobReport) -> Chart:
    def of(mode: str) -> Value:
        return lambda each: each.interval_seconds if each.mode == mode else None

    data = [_line(report, mode, of(mode), step=True) for mode in ("Partial", "Full")]
    layout = _over_samples(report, "s between cuts", rangemode="tozero")
    return Chart("interval", "Plan", "The planned interval between cuts, and the mode of recovery.", data, layout)


def _times(report: JobReport) -> Chart:
    """Return one bar of all time by its parts. The failures lie on the time to recover, one after the other."""
    times = report.times()
    data: list[Trace] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": ["time"],
            "x": [seconds],
            "marker": {"color": colour},
            "hovertemplate": f"{name}: %{{x:.3f}} s<extra></extra>",
        }
        for (name, seconds), colour in zip(times.items(), TIME_COLOURS, strict=False)
        if seconds
    ]
    data.append(_failure_marks(report, times))
    layout = _layout("s", "", type="category")
    layout["barmode"] = "stack"
    note = "All time of the job by its parts, which add up to the wall time."
    return Chart("time", "Where the time went", note, data, layout)


def _failure_marks(report: JobReport, times: Mapping[str, float]) -> Trace:
    """Return a mark for each failure, where its recovery begins if the newest ones are put one after the other."""
    causes = list(times)
    begin = sum(times[each] for each in causes[: causes.index("recovering")]) if causes else 0.0
    end = begin + times.get("recovering", 0.0)
    found = [each for each in report.status.failures if each.recovery_seconds is not None] if causes else []
    lasted = [each.recovery_seconds or 0.0 for each in found]
    x = [min(begin + before, end) for before in accumulate(lasted[:-1], initial=0.0)] if found else []
    texts = [f"{each.role}/{each.index} {each.kind}: {s:.1f} s" for each, s in zip(found, lasted, strict=True)]
    # Visible on each part of the bar, light and dark.
    marks = {"symbol": "diamond", "size": 12, "color": "#ffffff", "line": {"color": "#1d2430", "width": 2}}
    trace = {**_trace("failures", x, ["time"] * len(x)), "mode": "markers", "marker": marks, "text": texts}
    return {**trace, "hovertemplate": "%{text}<extra></extra>"}


def _failures(report: JobReport) -> Chart:
    data = []
    for name in get_args(FailureOutcome):
        found = [each for each in report.status.failures if outcome(each) == name]
        texts = [f"{each.role}/{each.index} {each.kind}: {each.action}, {each.lost_samples or 0:,} samples lost"
                 for each in found]  # fmt: skip
        trace = _trace(name, [_utc(each.time) for each in found], [each.recovery_seconds or 0 for each in found])
        data.append(
            {**trace, "mode": "markers", "text": texts, "hovertemplate": "%{text}<br>%{y:.1f} s<extra></extra>"}
        )
    layout = _over_time(report, "s to train again", rangemode="tozero")
    return Chart("failures", "Failures", "The duration and the outcome of each failure.", data, layout)


def _members(report: JobReport) -> Chart:
    spans = list(report.spans())
    failed = {span.member for span in spans if span.unavailable}
    lanes = len(report.status.members)
    shown = [span for span in spans if lanes <= MAX_LANES or span.member in failed]
    data = []
    for name, unavailable in (("at work", False), ("unavailable", True)):
        x: list[str | None] = []
        y: list[str | None] = []
        for span in shown:
            if span.unavailable == unavailable:
                x += [_utc(span.begin), _utc(span.end), None]
                y += [span.member, span.member, None]
        trace = {**_trace(name, x, y), "mode": "lines", "line": {"width": 8}}
        data.append(trace)
    layout = _over_time(report, "", type="category", autorange="reversed")
    left = lanes - len({span.member for span in shown})
    note = f"{left} members that never failed are left out." if left else "The periods in which each was at work."
    return Chart("members", "Members", note, data, layout)


def _line(report: JobReport, name: str, value: Value, *, step: bool = False) -> Trace:
    """Return a value over samples, as a line with a gap at each rollback."""
    x: list[int | None] = []
    y: list[float | None] = []
    generation = None
    for each in report.points:
        if generation not in {None, each.generation}:
            x.append(None)
            y.append(None)
        generation = each.generation
        x.append(each.samples)
        y.append(value(each))
    trace = _trace(name, x, y)
    return {**trace, "line": {"shape": "hv"}} if step else trace


def _trace(name: str, x: Iterable[Any], y: Iterable[Any], dash: str | None = None) -> Trace:
    line = {} if dash is None else {"line": {"dash": dash}}
    return {"type": "scatter", "mode": "lines", "name": name, "x": list(x), "y": list(y), **line}


def _over_samples(report: JobReport, title: str, **axis: Any) -> dict[str, Any]:
    """Return a layout over samples, with a line at each failure."""
    layout = _layout(OVER_SAMPLES, title, **axis)
    layout["xaxis"]["range"] = [0, report.status.progress.total_samples or 1]
    places = sorted({report.samples_at(each.time) for each in report.status.failures})
    layout["shapes"] = [
        {"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1, "line": {"width": 1, "dash": "dot"}}
        for x in places
    ]
    return layout


def _over_time(report: JobReport, title: str, **axis: Any) -> dict[str, Any]:
    layout = _layout(OVER_TIME, title, **axis)
    begin = report.status.start_time or report.now
    layout["xaxis"] |= {"type": "date", "range": [_utc(begin), _utc(max(report.end, begin + 1))]}
    return layout


def _layout(x: str, y: str, **axis: Any) -> dict[str, Any]:
    return {
        "xaxis": {"title": {"text": x}, "automargin": True, "exponentformat": "SI"},
        "yaxis": {"title": {"text": y}, "automargin": True, "exponentformat": "SI", **axis},
        "shapes": [],
        "showlegend": True,
    }


def _utc(seconds: float) -> str:
    """Return a time in Plotly's format, which has no zone and means UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
