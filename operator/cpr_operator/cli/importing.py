"""`cprjob import`: runs the trainer image's code to write a model that was trained elsewhere as an anchor."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from cpr_contract.codec import to_dict
from cpr_contract.requests import Imported, ImportedTable, ImportRequest
from cpr_contract.spec import JobSpec
from cpr_operator.api.yaml_text import write_documents
from cpr_operator.cli.command_errors import OptionError
from cpr_operator.cli.trainer_process import RunRole, answer

#: The name of an import, which is a part of keys.
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,46}[a-z0-9])?")
#: The maximum number of names in a list.
_SHOWN = 20


def checked(request: ImportRequest, *, here: bool) -> ImportRequest:
    """Return the request with absolute paths. Those in a pod (not `here`) must be absolute. Raises OptionError."""
    if not _NAME.fullmatch(request.name):
        raise OptionError(f"--name {request.name}: use at most 48 of a-z, 0-9 and -, none of these at an end")
    relative = [source for source in request.sources if "://" not in source and not source.startswith("/")]
    if relative and not here:
        folder = f"--from {relative[0]}: a pod does not see this folder"
        raise OptionError(f"{folder}; name s3://bucket/key or /path in the pod")
    sources = (str(Path.cwd() / source) if source in relative else source for source in request.sources)
    return replace(request, sources=tuple(sources))


def parse_map(text: str) -> tuple[str, str]:
    """Split TENSOR=NAME at the last `=`. Raises OptionError."""
    tensor, _, name = text.rpartition("=")
    if not tensor or not name:
        raise OptionError(f"--map {text} is not TENSOR=NAME, as in embedding_bags.t_user.weight=user")
    return tensor, name


def import_model(job: JobSpec | None, request: ImportRequest, console: Console, run: RunRole, *, as_json: bool) -> None:
    """Import a model and print the result. If it raises TrialError, nothing is left in the store."""
    imported = answer(Imported, run, "import", job, request)
    if as_json:
        console.print_json(json.dumps(to_dict(imported)))
    else:
        show(imported, console)


def show(imported: Imported, console: Console) -> None:
    """Print what was taken, what was not, and how a job starts from it."""
    sizes = (Column(heading, justify="right") for heading in ("rows", "dim"))
    table = Table("table", "tensor", *sizes, "with", box=None, header_style="bold", pad_edge=False)
    for each in imported.tables:
        sums = "sums of RowWiseAdagrad" if each.sums else ""
        table.add_row(escape(each.name), escape(each.tensor), f"{each.rows:,}", str(each.dim), sums)
    console.print(table, highlight=False)
    if imported.layers is not None:
        console.print(f"{imported.layers} parameters and buffers of the dense network", highlight=False)
    missing = (*(f"table {name}" for name in imported.missing_tables), *imported.missing_layers)
    _list(console, "Not in the source, so with first values:", missing)
    _list(console, "In the source, and not used:", imported.unused)
    for each in imported.tables:
        if each.dropped:
            full = f"{each.dropped:,} rows of {each.name} found their places full, and were left out"
            console.print(escape(f"{full}: give the table more rows."), highlight=False, soft_wrap=True)
        if assumption := _assumption(each):
            console.print(escape(f"{assumption}: make sure that it was trained so."), highlight=False, soft_wrap=True)
    lines = write_documents(rules_for(imported)).splitlines()
    console.print("Start from it by", *(f"  {escape(line)}" for line in lines), sep="\n", highlight=False)


def _assumption(table: ImportedTable) -> str | None:
    """Return the part of the meaning of a table's rows that no file states."""
    row = f"Row r of {table.name} has"
    if table.ids == "RowNumber" or table.row_ids is not None:
        return None
    if table.ids == "Vocabulary":
        return f"{row} the r-th value of its vocabulary, and row 0 all other ids"
    if table.row_keys is not None:
        return f"{row} the id of the r-th key in {table.row_keys}, an XXH64 ({table.ids})"
    if _is_dynamic(table):
        return f"{row} the id r"
    return f"{row} the ids with a hash ({table.ids}) of r modulo {table.wanted_rows}"


def _is_dynamic(table: ImportedTable) -> bool:
    return table.ids.startswith("Dynamic")


def _list(console: Console, title: str, names: Iterable[str]) -> None:
    every = tuple(names)
    if every:
        more = (f"and {len(every) - _SHOWN} more",) if len(every) > _SHOWN else ()
        lines = (f"  {escape(name)}" for name in (*every[:_SHOWN], *more))
        console.print(title, *lines, sep="\n", highlight=False, soft_wrap=True)


def rules_for(imported: Imported) -> dict[str, Any]:
    """Return the fields of `spec` with which a job starts from the imported model."""
    rules: dict[str, Any] = {"anchor": imported.key}
    if imported.missing_tables:
        rules["missing"] = "Initialise"
    if imported.layers is None:
        rules["dense"] = "Initialise"
    resized = [each for each in imported.tables if each.rows != each.wanted_rows and not _is_dynamic(each)]
    if resized:
        rules["map"] = [
            {
                "table": each.name,
                "from": each.name,
                "resized": "Truncate" if each.ids in {"RowNumber", "Vocabulary"} else "Rehash",
            }
            for each in resized
        ]
    return {"restoreFrom": rules}
