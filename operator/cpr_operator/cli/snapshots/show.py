"""The results of `cprjob snapshots`, for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import groupby

from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from cpr_contract.requests import Damage, Point, Pruning, Verification

_TITLES = ("step", "samples", "kind", "shards", "generation", "written (UTC)", "size", "bits", "based on", "strategy")
_LEFT = frozenset({"kind", "written (UTC)", "based on", "strategy"})


def show_points(console: Console, points: Iterable[Point], words: Mapping[str, str] | None = None) -> None:
    """Print a table for each job, oldest point first; `words` are remarks on points, by key."""
    points = tuple(points)
    if not points:
        console.print("no saves found")
    for job_uid, found in groupby(points, key=lambda point: point.job_uid):
        table = Table(title=f"job {job_uid}", title_justify="left", box=None, pad_edge=False)
        for title in (*_TITLES, *(("",) if words is not None else ())):
            table.add_column(title, header_style="dim", justify="left" if title in _LEFT else "right")
        for point in found:
            table.add_row(*_cells(point), *((words.get(point.key, ""),) if words is not None else ()))
        console.print(table, "", sep="\n", highlight=False)


def show_damage(console: Console, damaged: Iterable[Damage]) -> None:
    """Print each damaged object: its key, what was expected, and what was found."""
    for damage in damaged:
        console.print(f"[red]{escape(damage.key)}[/red]", highlight=False, soft_wrap=True)
        for name, text in (("expected", damage.expected), ("found", damage.found)):
            console.print(f"    {name}: {escape(text)}", highlight=False, soft_wrap=True)


def show_verification(console: Console, found: Verification) -> None:
    """Print the points with their verdicts, the damaged objects, and how much was read."""
    unusable = set(found.unusable)
    words = {p.key: "[red]damaged[/red]" if p.key in unusable else "[green]intact[/green]" for p in found.points}
    show_points(console, found.points, words)
    show_damage(console, found.damaged)
    verdict = f"[red]{len(found.damaged)} damaged[/red]" if found.damaged else "[green]all intact[/green]"
    console.print(f"{found.objects} objects, {decimal(found.size_bytes)} read: {verdict}", highlight=False)


def show_pruning(console: Console, found: Pruning) -> None:
    """Print the points to keep and to delete, and how much the latter are."""
    words = {p.key: "keep" for p in found.stay} | {p.key: "[yellow]delete[/yellow]" for p in found.go}
    show_points(console, sorted((*found.stay, *found.go), key=_age), words)
    amount = f"{found.objects} objects, {decimal(found.size_bytes)}"
    if found.deleted:
        console.print(f"{amount}: deleted", highlight=False)
    else:
        console.print(f"{amount} would be deleted; add --delete to delete them", highlight=False)


def _cells(point: Point) -> tuple[str, ...]:
    written = datetime.fromtimestamp(point.written_s, UTC)
    return (
        f"{point.step:,}",
        f"{point.samples:,}",
        point.kind,
        str(len(point.shards)) if point.shards else "-",
        str(point.generation),
        f"{written:%Y-%m-%d %H:%M:%S}",
        decimal(point.size_bytes),
        "-" if point.bits is None else str(point.bits),
        ", ".join(f"{step:,}" for step in point.bases) or "-",
        point.strategy or "-",
    )


def _age(point: Point) -> tuple[str, int, int, float]:
    return point.job_uid, point.generation, point.step, point.written_s
