"""Jobs of a cluster as text, and one of them followed until it is over."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from cpr_operator.api.base import parse_time
from cpr_operator.api.crd import COLUMNS, Column
from cpr_operator.api.status import Condition, Status
from cpr_operator.api.yaml_text import write_documents
from cpr_operator.cli.console import ListingForm, Where
from cpr_operator.cli.progress import Pace, Progress, Snapshot, members, open_progress
from cpr_operator.cli.report import facts, failures, headline, next_step_there, overall_speed, print_summary
from cpr_operator.policy.plan import duration

# Jobs of a cluster as text: the columns of `kubectl get`, and the whole of one job. Pure.


if TYPE_CHECKING:
    from cpr_operator.client import Event, Job


def listing(jobs: Sequence[Job], form: ListingForm, now: float, *, namespaces: bool, single: bool) -> RenderableType:
    """The jobs in a form of `kubectl get`; `single` if one job was asked for by its name."""
    match form:
        case "name":
            return Text("\n".join(f"cpr/{job.name}" for job in jobs))
        case "yaml":
            return Text(write_documents(_document(jobs, single=single)))
        case "json":
            return Text(json.dumps(_document(jobs, single=single), indent=2))
        case "table" | "wide":
            return table(jobs, now, wide=form == "wide", namespaces=namespaces)


def table(jobs: Iterable[Job], now: float, *, wide: bool = False, namespaces: bool = False) -> Text:
    """A line for each job, with the resource's own printer columns, as wide as they are."""
    columns = [column for column in COLUMNS if wide or not column.wide]
    rows = [[*(["NAMESPACE"] if namespaces else ()), "NAME", *(column.name.upper() for column in columns)]]
    for job in jobs:
        first = [job.namespace, job.name] if namespaces else [job.name]
        rows.append([*first, *(cell(job.document, column, now) for column in columns)])
    widths = [max(map(len, each)) for each in zip(*rows, strict=True)]
    lines = ("   ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return Text("\n".join(lines), no_wrap=True)


def cell(document: Mapping[str, Any], column: Column, now: float) -> str:
    """What a printer column shows of a job; times are ages at `now`, in seconds since the epoch."""
    value: Any = document
    for key in column.path.removeprefix(".").split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    if value is None:
        return ""
    return duration(max(0.0, now - float(str(parse_time(value))))) if column.type == "date" else str(value)


def description(job: Job, events: Iterable[Event]) -> Group:
    """Everything about one job that a person may want to know."""
    status = job.status
    parts: list[RenderableType] = [headline(job.name, status), _origin(job), facts(status, _speed(status))]
    if status.members:
        parts += ["", members(status, most=len(status.members))]
    if status.conditions:
        parts += ["", _conditions(status.conditions)]
    if status.failures:
        parts += ["", failures(status.failures)]
    told = events_table(events)
    return Group(*parts, "", told if told.row_count else Text("No events: Kubernetes keeps them for an hour."))


def events_table(events: Iterable[Event]) -> Table:
    """A row for each event, oldest first."""
    shown = _titled("Events", "time (UTC)", "type", "reason", "message")
    for event in events:
        shown.add_row(_clock(event.time), *map(escape, (event.type, event.reason, event.message)))
    return shown


def _speed(status: Status) -> float | None:
    return overall_speed(status) or status.progress.samples_per_second


def _document(jobs: Sequence[Job], *, single: bool) -> dict[str, Any]:
    documents = [dict(job.document) for job in jobs]
    return documents[0] if single else {"apiVersion": "v1", "kind": "List", "items": documents}


def _origin(job: Job) -> Table:
    spec = job.spec
    grid = Table.grid(padding=(0, 2))
    grid.add_row("namespace", job.namespace)
    grid.add_row("created", f"{_clock(job.created)} UTC")
    grid.add_row("members", f"{spec.trainers.replicas} trainers, {spec.shards.replicas} shards")
    return grid


def _conditions(conditions: Iterable[Condition]) -> Table:
    shown = _titled("Conditions", "condition", "status", "since (UTC)", "reason", "message")
    for each in conditions:
        since = _clock(each.last_transition_time)
        shown.add_row(each.type, each.status, since, escape(each.reason), escape(each.message))
    return shown


def _titled(title: str, *columns: str) -> Table:
    shown = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        shown.add_column(column, header_style="dim")
    return shown


def _clock(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"


# Watches a job on a cluster, as `cprjob run` shows one on this machine, until it is over.


if TYPE_CHECKING:
    from cpr_operator.client import Client, Job

#: Seconds between two looks at all jobs.
LOOK_EVERY_S = 2.0


def follow_job(client: Client, name: str, where: Where, console: Console, *, from_start: bool) -> Status:
    """Show the job's progress and events until it is over, then its outcome; return its status then.

    from_start: show the events before now, too. Raises ClientError.
    """
    with _progress(console) as progress:
        told = set() if from_start else {event.uid for event in client.events(name)}
        watched = Watched(progress, told)
        for job in client.watch(name):
            watched.show(job)
            watched.tell(client)
    print_summary(console, name, job.status, watched.samples_per_s, next_step_there(job.status, name, where.options))
    return job.status


class Watched:
    """What of a job was seen so far: the events `told`, by their uid, and its pace."""

    def __init__(self, progress: Progress, told: set[str]) -> None:
        self._progress = progress
        self._told = told
        self._pace: Pace | None = None
        self._name = ""

    @property
    def samples_per_s(self) -> float | None:
        """Training speed over all that was watched; None if nothing was trained meanwhile."""
        return self._pace.samples_per_s if self._pace else None

    def show(self, job: Job) -> None:
        """Show how the job stands."""
        self._name, status = job.name, job.status
        done, when = status.progress.samples, status.progress.updated
        if when is not None:
            self._pace = self._pace.after(when, done) if self._pace else Pace.begin(when, done)
        self._progress.show(Snapshot(job.name, elapsed_s(status, time.time()), status, None))

    def tell(self, client: Client) -> None:
        """Print the events that are new. An API server that cannot answer now is asked again next time."""
        from cpr_operator.client import UnavailableError  # noqa: PLC0415 -- loaded with the client

        with contextlib.suppress(UnavailableError):
            for event in client.events(self._name):
                if event.uid not in self._told:
                    self._told.add(event.uid)
                    self._progress.tell(event.line)


def elapsed_s(status: Status, now: float) -> float:
    """Seconds since the first pods were created, until the job's end."""
    if status.start_time is None:
        return 0.0
    return max(0.0, (now if status.completion_time is None else status.completion_time) - status.start_time)


def follow_all(client: Client, console: Console, *, all_namespaces: bool) -> None:
    """Show a table of all jobs: on a terminal again and again until Ctrl-C, elsewhere once. Raises ClientError."""
    if not console.is_terminal:
        jobs = client.list(all_namespaces=all_namespaces)
        console.print(table(jobs, time.time(), wide=True, namespaces=all_namespaces), soft_wrap=True)
        return
    with Live(console=console, auto_refresh=False) as live:
        while True:
            jobs = client.list(all_namespaces=all_namespaces)
            live.update(table(jobs, time.time(), wide=True, namespaces=all_namespaces), refresh=True)
            time.sleep(LOOK_EVERY_S)


@contextlib.contextmanager
def _progress(console: Console) -> Iterator[Progress]:
    progress = open_progress(console)
    try:
        yield progress
    finally:
        progress.close()
