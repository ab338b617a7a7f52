"""The table of each column of ids: how ids become rows, and how many rows there are."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cpr_contract.model import PAGE_SLOTS
from cpr_contract.requests import ColumnStats, DataStats
from cpr_operator.cli.proposal import kinds
from cpr_operator.cli.proposal.columns import Use

#: Row numbers may be sparse up to this many rows an id; a row costs memory alone.
_ROWS_PER_ID = 8
_FEW_ROWS = 4096
_MAX_ROWS = 2**31 - 1
#: A vocabulary with more values takes too long to count, and trainers hold its values in memory.
_MOST_VALUES = 1_000_000
#: The number of different values is exact up to here, and has a standard error of 1.6 % beyond.
_EXACT = 4095
_MARGIN = 1.1
#: If there are more ids, and at least this portion occurs once, others are still to come.
_MANY = 10_000
_ENDLESS = 0.5
#: Dynamic tables are planned for this occupancy (docs/dynamic-tables.md).
_OCCUPANCY = 0.9
#: Each of the two shards needs a page.
_LEAST_PAGES = 2
_MAX_NAME = 63


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the manifest, by the fields of `spec.model.tables`, with the reason for its ids and its size."""

    fields: Mapping[str, Any]
    reason: str

    @property
    def is_dynamic(self) -> bool:
        """True if the table takes rows back."""
        return self.fields.get("ids") == "Dynamic"


def tables_of(uses: Sequence[Use], data: DataStats) -> tuple[Table, ...]:
    """Return a table for each column of ids, in their order."""
    names = _table_names([use.column.name for use in uses])
    found = []
    for name, use in zip(names, uses, strict=True):
        ids, reason = _ids(use, data)
        pooling = {"pooling": "Mean"} if use.role == "Bag" else {}
        found.append(Table({"name": name, **ids, **pooling}, reason))
    return tuple(found)


def smaller(tables: Sequence[Table], capacity: int) -> tuple[Table, ...]:
    """Return the tables with at most `capacity` rows, a multiple of PAGE_SLOTS: larger ones become dynamic."""
    found = []
    for table in tables:
        if table.fields["rows"] <= capacity:
            found.append(table)
            continue
        others = {key: table.fields[key] for key in ("name", "pooling") if key in table.fields}
        fields = {**others, "rows": capacity, "ids": "Dynamic", "eviction": {"score": "Pushes"}}
        found.append(Table(fields, f"{table.fields['rows']:,} rows do not fit into memory: rare ids lose theirs"))
    return tuple(found)


def _ids(use: Use, data: DataStats) -> tuple[dict[str, Any], str]:
    """Return `rows`, `ids` and the fields that these need, with the reason."""
    column = use.column
    distinct, repeated = column.distinct or 1, column.repeated or 0
    if data.read is not None:
        # At most, each id that was read once stands for as many as there are rows for each that was read.
        most = repeated + math.ceil((distinct - repeated) * data.rows / max(1, data.read))
        return _dynamic(most), f"{distinct:,} ids in a sample of {data.read:,} rows: more may come"
    if (rows := _row_numbers(use, column, distinct)) is not None:
        safe = (column.lowest or 0) >= 1 or (use.role == "Ids" and (column.missing or not column.finite))
        unknown = {"outOfRange": "DefaultRow"} if safe else {}
        default = ", and row 0 is for others" if safe else ""
        return {"rows": rows, "ids": "RowNumber", **unknown}, f"{distinct:,} numbers below {rows:,}{default}"
    single = distinct - repeated
    if distinct > _MANY and single >= _ENDLESS * distinct:
        return _dynamic(distinct), f"{distinct:,} ids, {single / distinct:.0%} of them occur once: more are to come"
    if distinct > _MOST_VALUES:
        return _dynamic(distinct), f"{distinct:,} ids are too many for a vocabulary"
    rows = distinct + 1 if distinct <= _EXACT else math.ceil(_MARGIN * distinct)
    fields = {"rows": rows, "ids": "Vocabulary", "vocabulary": {"build": {"minCount": 1}}}
    return fields, f"{distinct:,} ids have a row each, and row 0 is for others"


def _row_numbers(use: Use, column: ColumnStats, distinct: int) -> int | None:
    """Return the rows of a table with ids as row numbers; None if they are no such numbers, or too sparse."""
    kind = column.kind.removeprefix("list of ")
    if column.lowest is None or column.highest is None or column.lowest < 0:
        return None
    rows = int(column.highest) + 1
    if not (kinds.is_integer(kind) or use.whole) or rows > min(max(_ROWS_PER_ID * distinct, _FEW_ROWS), _MAX_ROWS):
        return None
    return rows


def _dynamic(ids: int) -> dict[str, Any]:
    rows = PAGE_SLOTS * max(_LEAST_PAGES, math.ceil(ids / (_OCCUPANCY * PAGE_SLOTS)))
    return {"rows": rows, "ids": "Dynamic", "eviction": {"score": "Pushes"}}


def _table_names(columns: Sequence[str]) -> tuple[str, ...]:
    """Return a valid and unique name of a table for each column."""
    found: dict[str, None] = {}
    for column in columns:
        plain = re.sub(r"[^a-z0-9_]+", "-", column.lower())[: _MAX_NAME - 4].strip("-_")
        base = plain if plain and not plain.isdecimal() else f"c{plain}"
        name, number = base, 2
        while name in found:
            name, number = f"{base}-{number}", number + 1
        found[name] = None
    return tuple(found)
