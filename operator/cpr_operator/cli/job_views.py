"""Jobs of a cluster as text: the columns of `kubectl get`, and the details of one job."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from cpr_operator.api.base import epoch
from cpr_operator.api.crd import COLUMNS, Column
from cpr_operator.api.yaml_text import write_documents
from cpr_operator.cli.command_options import ListingForm
from cpr_operator.cli.console import plain_table
from cpr_operator.cli.progress_display import members
from cpr_operator.cli.report import clock, facts, failures, headline, overall_speed
from cpr_operator.client.job import value_at
from cpr_operator.policy.plan import duration

if TYPE_CHECKING:
    from cpr_operator.client import Event, Job


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
        rows.append([*first, *(cell(job.document, column, now) for column in columns)])
    widths = [max(map(len, each)) for each in zip(*rows, strict=True)]
    lines = ("   ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return Text("\n".join(lines), no_wrap=True)


def cell(document: Mapping[str, Any], column: Column, now: float) -> str:
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
