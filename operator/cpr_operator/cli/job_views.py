"""Jobs of a cluster as text: the columns of `kubectl get`, the details of one job, and both while time passes."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from cpr_operator.api.base import epoch
from cpr_operator.api.crd import COLUMNS, Column
from cpr_operator.api.status import Status
from cpr_operator.api.yaml_text import write_documents
from cpr_operator.cli.command_options import ClusterOptions, ListingForm
from cpr_operator.cli.console import plain_table
from cpr_operator.cli.progress_display import ProgressState, Throughput, members, open_progress
from cpr_operator.cli.report import (
    clock,
    dynamic_tables,
    facts,
    failures,
    headline,
    next_step_on_cluster,
    overall_speed,
    print_summary,
)
from cpr_operator.client.job import value_at
from cpr_operator.policy.plan import duration

if TYPE_CHECKING:
    from cpr_operator.client import Client, Event, Job

#: Seconds between two requests for all jobs.
POLL_S = 2.0


def listing(jobs: Sequence[Job], form: ListingForm, now: float, *, namespaces: bool, single: bool) -> RenderableType:
    """Return the jobs in a form of `kubectl get`; `single` if the command names one job."""
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
    """Return a line for each job, with the printer columns of the resource."""
    columns = [column for column in COLUMNS if wide or not column.wide]
    rows = [[*(["NAMESPACE"] if namespaces else ()), "NAME", *(column.name.upper() for column in columns)]]
    for job in jobs:
        first = [job.namespace, job.name] if namespaces else [job.name]
        rows.append([*first, *(_cell(job.document, column, now) for column in columns)])
    widths = [max(map(len, each)) for each in zip(*rows, strict=True)]
    lines = ("   ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return Text("\n".join(lines), no_wrap=True)


def _cell(document: Mapping[str, Any], column: Column, now: float) -> str:
    """Return the text of a printer column; times are ages at `now`, in seconds since the epoch."""
    value = value_at(document, column.path.removeprefix("."))
    if value is None:
        return ""
    return duration(max(0.0, now - (epoch(value) or 0.0))) if column.type == "date" else str(value)


def description(job: Job, events: Iterable[Event]) -> Group:
    """Return the details of one job."""
    spec, status = job.spec, job.status
    grid = Table.grid(padding=(0, 2))
    grid.add_row("namespace", job.namespace)
    grid.add_row("created", f"{clock(job.created)} UTC")
    grid.add_row("members", f"{spec.trainers.replicas} trainers, {spec.shards.replicas} shards")
    speed = overall_speed(status) or status.progress.samples_per_second
    parts: list[RenderableType] = [headline(job.name, status), grid, facts(status, speed)]
    if status.tables:
        parts += ["", dynamic_tables(status.tables)]
    if status.members:
        parts += ["", members(status, most=len(status.members))]
    if status.conditions:
        conditions = plain_table("condition", "status", "since (UTC)", "reason", "message", title="Conditions")
        for each in status.conditions:
            since = clock(each.last_transition_time)
            conditions.add_row(each.type, each.status, since, escape(each.reason), escape(each.message))
        parts += ["", conditions]
    if status.failures:
        parts += ["", failures(status.failures)]
    table = events_table(events)
    return Group(*parts, "", table if table.row_count else Text("No events: Kubernetes keeps them for an hour."))


def events_table(events: Iterable[Event]) -> Table:
    """Return a table with a row for each event, oldest first."""
    shown = plain_table("time (UTC)", "type", "reason", "message", title="Events")
    for event in events:
        shown.add_row(clock(event.time), *map(escape, (event.type, event.reason, event.message)))
    return shown


def _document(jobs: Sequence[Job], *, single: bool) -> dict[str, Any]:
    documents = [dict(job.document) for job in jobs]
    return documents[0] if single else {"apiVersion": "v1", "kind": "List", "items": documents}


def follow_job(client: Client, name: str, kube: ClusterOptions, console: Console, *, from_start: bool) -> Status:
    """Show the job's progress and events until it is over, then its outcome, and return its last status.

    from_start: show earlier events, too. Raises ClientError.
    """
    from cpr_operator.client import UnavailableError  # noqa: PLC0415 -- slow to import

    throughput = Throughput()
    with contextlib.closing(open_progress(console)) as progress:
        shown = set() if from_start else {event.uid for event in client.events(name)}
        for job in client.watch(name):
            status, now = job.status, time.time()
            done, when = status.progress.samples, status.progress.updated
            if when is not None:
                throughput.add(when, done)
            elapsed_s = max(0.0, (status.completion_time or now) - (status.start_time or now))
            progress.show(ProgressState(job.name, elapsed_s, status, None))
            with contextlib.suppress(UnavailableError):  # the next round prints the events
                for event in client.events(name):
                    if event.uid not in shown:
                        shown.add(event.uid)
                        progress.print(event.line)
    next_step = next_step_on_cluster(status, name, kube.text)
    print_summary(console, name, status, throughput.samples_per_s, next_step)
    return status


def follow_all(client: Client, console: Console, *, all_namespaces: bool) -> None:
    """Show a table of all jobs: on a terminal until Ctrl-C, else once. Raises ClientError."""
    if not console.is_terminal:
        jobs = client.list(all_namespaces=all_namespaces)
        console.print(table(jobs, time.time(), wide=True, namespaces=all_namespaces), soft_wrap=True)
        return
    with Live(console=console, auto_refresh=False) as live:
        while True:
            jobs = client.list(all_namespaces=all_namespaces)
            live.update(table(jobs, time.time(), wide=True, namespaces=all_namespaces), refresh=True)
            time.sleep(POLL_S)
