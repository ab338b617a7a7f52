"""`cprjob snapshots`: lists, verifies and prunes the saves of a job, with the trainer image's code."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import groupby

from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Column

from cpr_contract.codec import to_dict
from cpr_contract.requests import Damage, Listing, Point, Pruning, Request, Verification
from cpr_operator.api.status import TERMINAL_PHASES
from cpr_operator.cli.command_errors import OptionError
from cpr_operator.cli.console import plain_table
from cpr_operator.cli.report import clock
from cpr_operator.cli.store_source import JobStore
from cpr_operator.cli.trainer_process import RunRole, answer

#: The exit code for damaged objects.
DAMAGED = 1
_TITLES = ("step", "samples", "kind", "shards", "generation", "written (UTC)", "size", "bits", "based on", "strategy")
_LEFT = frozenset({"kind", "written (UTC)", "based on", "strategy"})


def list_points(source: JobStore, console: Console, run: RunRole, *, as_json: bool) -> int:
    """Print all points and return the exit code. Raises TrialError if the store cannot be read."""
    found = answer(Listing, run, "inventory", None, Request("List", source.store, source.job_uid))
    if as_json:
        console.print_json(json.dumps(to_dict(found)))
    else:
        _show_points(console, found.points)
        _show_damage(console, found.damaged)
    return DAMAGED if found.damaged else 0


def verify_saves(source: JobStore, console: Console, run: RunRole, *, as_json: bool) -> int:
    """Read all saves, print the damaged objects, and return the exit code. Raises TrialError as above."""
    request = Request("Verify", source.store, source.job_uid, model=source.model)
    found = answer(Verification, run, "inventory", None, request)
    if as_json:
        console.print_json(json.dumps(to_dict(found)))
    else:
        unusable = set(found.unusable)
        remarks = {p.key: "[red]damaged[/red]" if p.key in unusable else "[green]intact[/green]" for p in found.points}
        _show_points(console, found.points, remarks)
        _show_damage(console, found.damaged)
        result = f"[red]{len(found.damaged)} damaged[/red]" if found.damaged else "[green]all intact[/green]"
        console.print(f"{found.objects} objects, {decimal(found.size_bytes)} read: {result}", highlight=False)
    return DAMAGED if found.damaged else 0


def prune_saves(  # noqa: PLR0913 -- one parameter per option
    source: JobStore,
    keep: int | None,
    console: Console,
    run: RunRole,
    *,
    delete: bool,
    as_json: bool,
) -> None:
    """Print the saves that no restore needs, and delete them if `delete`.

    keep: the number of anchors to keep; 0 keeps nothing, None is the job's own number. Check the job's phase before
    (`check_phase`). Raises TrialError as above.
    """
    request = Request(
        action="Prune",
        store=source.store,
        job_uid=source.job_uid,
        keep=source.keep if keep is None else keep,
        forks=source.forks,
        delete=delete,
        recorded=source.recorded,
    )
    found = answer(Pruning, run, "inventory", None, request)
    if as_json:
        console.print_json(json.dumps(to_dict(found)))
        return
    remarks = {p.key: "keep" for p in found.stay} | {p.key: "[yellow]delete[/yellow]" for p in found.go}
    oldest_first = sorted((*found.stay, *found.go), key=lambda p: (p.job_uid, p.generation, p.step, p.written_s))
    _show_points(console, oldest_first, remarks)
    result = "deleted" if found.deleted else "would be deleted; add --delete to delete them"
    amount = f"{found.objects} objects, {decimal(found.size_bytes)}"
    console.print(f"{amount}{':' if found.deleted else ''} {result}", highlight=False)


def check_phase(source: JobStore, *, everything: bool) -> None:
    """Raise OptionError in phases in which the leader prunes, or the job needs its saves.

    A job with degraded saves may be pruned by hand, because its leader may be unable to.
    """
    if source.phase is None or source.phase in TERMINAL_PHASES:
        return
    if source.phase != "Suspended" and not source.degraded:
        raise OptionError(f"the job is {source.phase}, and its leader already prunes after every anchor")
    if everything:
        use = "be resumed" if source.phase == "Suspended" else "recover"
        raise OptionError(f"the job is {source.phase} and could not {use} without its saves; delete the job first")


def _show_points(console: Console, points: Iterable[Point], remarks: Mapping[str, str] | None = None) -> None:
    """Print a table for each job, oldest point first, with remarks by the keys of points."""
    points = tuple(points)
    if not points:
        console.print("no saves found")
    for job_uid, found in groupby(points, key=lambda point: point.job_uid):
        titles = (*_TITLES, *(("",) if remarks is not None else ()))
        columns = (Column(title, justify="left" if title in _LEFT else "right") for title in titles)
        table = plain_table(*columns, title=f"job {job_uid}")
        for point in found:
            table.add_row(
                f"{point.step:,}",
                f"{point.samples:,}",
                point.kind,
                str(len(point.shards)) if point.shards else "-",
                str(point.generation),
                clock(point.written_s),
                decimal(point.size_bytes),
                "-" if point.bits is None else str(point.bits),
                ", ".join(f"{step:,}" for step in point.bases) or "-",
                point.strategy or "-",
                *((remarks.get(point.key, ""),) if remarks is not None else ()),
            )
        console.print(table, "", sep="\n", highlight=False)


def _show_damage(console: Console, damaged: Iterable[Damage]) -> None:
    """Print each damaged object: its key, the expected and the found content."""
    for damage in damaged:
        console.print(f"[red]{escape(damage.key)}[/red]", highlight=False, soft_wrap=True)
        for name, text in (("expected", damage.expected), ("found", damage.found)):
            console.print(f"    {name}: {escape(text)}", highlight=False, soft_wrap=True)
