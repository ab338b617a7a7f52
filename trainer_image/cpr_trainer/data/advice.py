"""What to change in a job, by the figures of its data."""

from __future__ import annotations

import math
import re

from cpr_contract.model import TableSpec
from cpr_contract.requests import ColumnFigures
from cpr_trainer.data.columns import Input
from cpr_trainer.data.whole_numbers import Spellings

#: A column's kind in text, and in Parquet; of a bag, that of its ids.
_INTEGERS = re.compile("(list of )?(integer|u?int[0-9]+)")


SPELLINGS_REMEDY = "Name the column in data.columns.integers, or write the files in one way."


def spells_ids(used: Input) -> bool:
    """Whether ids of a column that are written in two ways would be two ids; elsewhere other ways are bad rows."""
    return not used.integers and used.table.ids != "RowNumber"


def warn_of_spellings(column: str, spellings: Spellings) -> str | None:
    """Return what is wrong with a column of ids that are written in two ways; None without such ids."""
    if (found := spellings.twice()) is None:
        return None
    return f"Column {column} writes {found}, which are different ids."


def advise(column: ColumnFigures, table: TableSpec) -> str | None:
    """Say that ids are hashed although they may be the numbers of rows; None if they are not hashed, or may not be."""
    if table.ids in {"RowNumber", "Vocabulary"} or not _INTEGERS.fullmatch(column.kind):
        return None
    low, high = column.lowest, column.highest
    if low is None or high is None or low < 0 or high >= table.rows:
        return None
    ids = column.distinct or 0
    # So many rows of a table are hit by so many ids, each at random.
    hit = round(table.rows * -math.expm1(-ids / table.rows))
    missing = column.missing and column.bag_mean is None
    absent = " and outOfRange: DefaultRow, because some are missing" if missing else ""
    return (
        f"Column {column.name} has integers from {low:.0f} to {high:.0f}, which are rows of table {table.name}. "
        f"Hashed, its {ids:,} different ids share about {hit:,} rows. "
        f"State ids: RowNumber in spec.model.tables{absent}."
    )
