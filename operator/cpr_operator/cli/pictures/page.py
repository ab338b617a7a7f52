"""A job's charts, and its page as one HTML file that needs no network."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any, get_args

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from cpr_operator.api.progress import PointFigures
from cpr_operator.cli.pictures.story import Story, Tier, clock, facts, headline, speeds, tables, tier

# The charts of a job, as Plotly's JSON: https://plotly.com/javascript/reference. Colours are the page's. Pure.


#: Members with a line of their own; of more, those that failed.
MAX_LANES = 24
OVER_SAMPLES = "samples"
OVER_TIME = "time (UTC)"

Trace = dict[str, Any]
Figure = Callable[[PointFigures], float | None]


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart. id: of its place in the page. note: what there is to know about it, in a sentence."""

    id: str
    title: str
    note: str
    data: list[Trace]
    layout: dict[str, Any]


def charts(story: Story) -> tuple[Chart, ...]:
    """All charts, the same for every job: what is not known yet stays empty."""
    return (
        _loss(story),
        _auc(story),
        _calibration(story),
        _speed(story),
        _budget(story),
        _ledger(story),
        _unsaved(story),
        _interval(story),
        _failures(story),
        _members(story),
        _replicas(story),
    )


def _loss(story: Story) -> Chart:
    data = [
        _line(story, "training loss", lambda each: each.loss),
        _line(story, "log loss", lambda each: each.logloss),
    ]
    note = "Of the last steps, and by progressive validation over all samples but the first fifth."
    return Chart("loss", "Loss", note, data, _over_samples(story, "nats"))


def _auc(story: Story) -> Chart:
    note = "By progressive validation over all samples but the first fifth."
    return Chart("auc", "AUC", note, [_line(story, "AUC", lambda each: each.auc)], _over_samples(story, "AUC"))


def _calibration(story: Story) -> Chart:
    data = [_line(story, "calibration", lambda each: each.calibration)]
    layout = _over_samples(story, "predicted / seen")
    layout["shapes"].append(_level(1.0))
    return Chart("calibration", "Calibration", "Predictions over labels, in sum: 1 at best.", data, layout)


def _speed(story: Story) -> Chart:
    overall = _trace("overall", [each.samples for each in story.points], speeds(story.points))
    data = [_line(story, "while nothing is saved", lambda each: each.samples_per_second), overall]
    note = "What lies between the lines is what saves and failures cost."
    return Chart("speed", "Speed", note, data, _over_samples(story, "samples / s", rangemode="tozero"))


def _budget(story: Story) -> Chart:
    budget = story.status.budget
    data = [_line(story, "lost", lambda each: each.spent, step=True)]
    if budget is not None:
        ends = [0, story.status.progress.total_samples]
        data.append(_trace("allowed", ends, [budget.limit, budget.limit], dash="dash"))
    layout = _over_samples(story, "portion of all samples", tickformat=".3~%", rangemode="tozero")
    return Chart("budget", "Accuracy budget", "What failures have cost for good, and what they may.", data, layout)


def _ledger(story: Story) -> Chart:
    lost = [(f"shard/{index}", first, end) for index, ranges in enumerate(story.status.ledger.ranges)
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
    layout["xaxis"]["range"] = [0, story.status.progress.total_samples or 1]
    layout["barmode"] = "overlay"
    note = "Samples whose updates a shard has lost for good: what the budget is charged."
    return Chart("ledger", "Ledger", note if lost else "No shard has lost anything for good.", data, layout)


def _unsaved(story: Story) -> Chart:
    data = [
        _line(story, "not in an anchor", lambda each: max(each.samples - each.saved_samples, 0)),
        {**_trace("anchors to go back to", [each.samples for each in story.status.anchors],
                  [0] * len(story.status.anchors)), "mode": "markers"},
    ]  # fmt: skip
    note = "Samples since the newest anchor: what a rollback would train again."
    return Chart("saves", "Saves", note, data, _over_samples(story, "samples", rangemode="tozero"))


def _interval(story: Story) -> Chart:
    def of(mode: str) -> Figure:
        return lambda each: each.interval_seconds if each.mode == mode else None

    data = [_line(story, mode, of(mode), step=True) for mode in ("Partial", "Full")]
    layout = _over_samples(story, "s between cuts", rangemode="tozero")
    return Chart("interval", "Plan", "The planned interval between cuts, and the mode of recovery.", data, layout)


def _failures(story: Story) -> Chart:
    data = []
    for name in get_args(Tier):
        found = [each for each in story.status.failures if tier(each) == name]
        words = [f"{each.role}/{each.index} {each.kind}: {each.action}, {each.lost_samples or 0:,} samples lost"
                 for each in found]  # fmt: skip
        trace = _trace(name, [_utc(each.time) for each in found], [each.recovery_seconds or 0 for each in found])
        data.append(
            {**trace, "mode": "markers", "text": words, "hovertemplate": "%{text}<br>%{y:.1f} s<extra></extra>"}
        )
    layout = _over_time(story, "s to train again", rangemode="tozero")
    return Chart("failures", "Failures", "How long each took, and what became of it.", data, layout)


def _members(story: Story) -> Chart:
    spans = list(story.spans())
    failed = {span.member for span in spans if span.away}
    lanes = len(story.status.members)
    shown = [span for span in spans if lanes <= MAX_LANES or span.member in failed]
    data = []
    for name, away in (("at work", False), ("away", True)):
        x: list[str | None] = []
        y: list[str | None] = []
        for span in shown:
            if span.away == away:
                x += [_utc(span.begin), _utc(span.end), None]
                y += [span.member, span.member, None]
        trace = {**_trace(name, x, y), "mode": "lines", "line": {"width": 8}}
        data.append(trace)
    layout = _over_time(story, "", type="category", autorange="reversed")
    left = lanes - len({span.member for span in shown})
    note = f"{left} members that never failed are left out." if left else "When each was at work."
    return Chart("members", "Members", note, data, layout)


def _replicas(story: Story) -> Chart:
    data = [
        _line(story, "shards", lambda each: each.shards, step=True),
        _line(story, "trainers", lambda each: each.trainers, step=True),
    ]
    return Chart(
        "replicas", "Size", "How many members the job had.", data, _over_samples(story, "members", rangemode="tozero")
    )


def _line(story: Story, name: str, figure: Figure, *, step: bool = False) -> Trace:
    """A figure over samples, in a line that is broken where the job went back."""
    x: list[int | None] = []
    y: list[float | None] = []
    generation = None
    for each in story.points:
        if generation not in {None, each.generation}:
            x.append(None)
            y.append(None)
        generation = each.generation
        x.append(each.samples)
        y.append(figure(each))
    trace = _trace(name, x, y)
    return {**trace, "line": {"shape": "hv"}} if step else trace


def _trace(name: str, x: Iterable[Any], y: Iterable[Any], dash: str | None = None) -> Trace:
    line = {} if dash is None else {"line": {"dash": dash}}
    return {"type": "scatter", "mode": "lines", "name": name, "x": list(x), "y": list(y), **line}


def _over_samples(story: Story, title: str, **axis: Any) -> dict[str, Any]:
    """Over samples, with a line at each failure."""
    layout = _layout(OVER_SAMPLES, title, **axis)
    layout["xaxis"]["range"] = [0, story.status.progress.total_samples or 1]
    places = sorted({story.samples_at(each.time) for each in story.status.failures})
    layout["shapes"] = [
        {"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1, "line": {"width": 1, "dash": "dot"}}
        for x in places
    ]
    return layout


def _over_time(story: Story, title: str, **axis: Any) -> dict[str, Any]:
    layout = _layout(OVER_TIME, title, **axis)
    begin = story.status.start_time or story.now
    layout["xaxis"] |= {"type": "date", "range": [_utc(begin), _utc(max(story.end, begin + 1))]}
    return layout


def _layout(x: str, y: str, **axis: Any) -> dict[str, Any]:
    return {
        "xaxis": {"title": {"text": x}, "automargin": True, "exponentformat": "SI"},
        "yaxis": {"title": {"text": y}, "automargin": True, "exponentformat": "SI", **axis},
        "shapes": [],
        "showlegend": True,
    }


def _level(y: float) -> dict[str, Any]:
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": {"width": 1, "dash": "dash"}}


def _utc(seconds: float) -> str:
    """As Plotly reads times, which it takes for UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def page(story: Story) -> str:
    """The page of a job as it is."""
    return render("report.html", **contents(story), plotly=_packed_plotly())


def contents(story: Story) -> dict[str, Any]:
    """What templates show of a job."""
    return {
        "story": story,
        "clock": clock,
        "facts": facts(story),
        "headline": headline(story.status),
        "tables": tables(story),
        "charts": [asdict(each) for each in charts(story)],
    }


def render(template: str, **values: Any) -> str:
    """A template of the folder `pages`."""
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> Environment:
    loader = PackageLoader("cpr_operator.cli.pictures", "pages")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)

    def source(name: str) -> Markup:
        """A style or a script as it is: ours, so nothing in it has to be escaped."""
        return Markup(loader.get_source(made, name)[0])  # noqa: S704

    made.globals["source"] = source
    return made


@cache
def _packed_plotly() -> str:
    """Plotly's script, gzip in base64: two megabytes instead of five. The page unpacks it."""
    from plotly.offline import get_plotlyjs  # noqa: PLC0415 -- what only shows words does not need it

    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()
