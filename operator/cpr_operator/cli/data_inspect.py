"""`cprjob data inspect`: runs the trainer image's code to read the data, and prints its columns and bad rows."""

from __future__ import annotations

import json as jsons
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from cpr_contract.codec import to_dict
from cpr_contract.requests import DataStats, Inspection, InspectionRequest
from cpr_operator.api.validate import parse_job
from cpr_operator.cli.document import read_single
from cpr_operator.cli.trainer_process import answer, run_role

_MANIFESTS = (".yaml", ".yml")
#: The exit code for data with bad rows.
_BAD_ROWS = 1


def inspect_data(target: str, console: Console, environment: Mapping[str, str], *, as_json: bool) -> int:
    """Read all rows and print their statistics. Returns the exit code: 1 if there are bad rows.

    Raises TrialError if the data cannot be read, DocumentError or InvalidSpecError if the manifest is not valid.
    """
    job = None
    if target.endswith(_MANIFESTS):
        job = parse_job(read_single(Path(target)), uid="inspection")
    elif "://" not in target and not target.startswith("/"):
        # As text, because a Path would drop the slash that marks a folder.
        target = f"{Path.cwd()}/{target}"
    request = InspectionRequest(None if job is not None else target)
    found = answer(Inspection, partial(run_role, environment=environment), "inspect", job, request)
    scored = found.scored
    if as_json:
        own = {} if scored is None else {"evaluation": to_dict(scored)}
        console.print_json(jsons.dumps(to_dict(found.data) | own))
    else:
        show(found.data, console)
        if scored is not None:
            console.print("\nevaluation.uri:")
            show(scored, console)
    return _BAD_ROWS if found.data.bad or (scored is not None and scored.bad) else 0


def show(found: DataStats, console: Console) -> None:
    """Print a table of the columns, then the bad rows and the samples of the job."""
    read_by_job = any(column.feeds for column in found.columns)
    numbers = (Column(heading, justify="right") for heading in ("missing", "lowest", "highest", "distinct", "repeated"))
    table = Table("column", "type", *numbers, box=None, header_style="bold", pad_edge=False)
    has_bags = any(column.bag_mean is not None for column in found.columns)
    if has_bags:
        table.add_column("ids per row", justify="right")
    if read_by_job:
        table.add_column("used as")
    for column in found.columns:
        missing = f"{column.missing / found.rows:.1%}" if column.missing else "0"
        bounds = ("" if bound is None else f"{bound:g}" for bound in (column.lowest, column.highest))
        counts = ("" if count is None else f"{count:,}" for count in (column.distinct, column.repeated))
        cells = [escape(column.name), escape(column.kind), missing, *bounds, *counts]
        if has_bags:
            cells.append("" if column.bag_mean is None else f"{column.bag_mean:.1f}, at most {column.bag_most:,}")
        if read_by_job:
            cells.append(escape(column.feeds))
        table.add_row(*cells)
    header = (
        "" if found.format not in {"Criteo", "CSV", "TSV"} else f", {'with' if found.header else 'without'} a header"
    )
    console.print(f"{found.format}{header}: {_count(found.files, 'file')}, {_count(found.rows, 'row')}")
    console.print(table)
    console.print(f"{_count(found.bad, 'bad row')}" + (", the first:" if found.bad else ""))
    for fault in found.faults:
        console.print(f"  {escape(fault)}", highlight=False, soft_wrap=True)
    for advice in found.advice:
        console.print(escape(advice), highlight=False, soft_wrap=True)
    if (reading := found.reading) is not None:
        shuffled = {0: "in their order", 1: "shuffled as a whole"}.get(
            reading.windows, f"shuffled in {reading.windows} windows"
        )
        console.print(
            f"The job trains {reading.samples:,} samples in {_count(reading.steps, 'step')} from"
            f" {_count(reading.trained, 'row')}, {shuffled}; {reading.held_out:,} are held out."
        )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
