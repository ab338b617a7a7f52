"""The use of each column that is not the label, with the reason."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from cpr_contract.requests import ColumnStats, DataStats
from cpr_operator.cli.proposal import kinds
from cpr_operator.cli.proposal.column_names import (
    ID_WORDS,
    LABELS,
    OUTCOMES,
    QUANTITY_WORDS,
    RATINGS,
    TIME_WORDS,
    TIMES,
    WEIGHTS,
    joined,
    words,
)

Role = Literal["Number", "Count", "Ids", "Bag", "Weight", "Unused"]
_LIST = "list of "
#: The longest name of a column in a manifest.
_MAX_NAME = 128
#: A column with this portion of different values differs in every row, but for a few repetitions and the estimate.
_UNIQUE = 0.95
_FEW_ROWS = 100
#: Larger numbers enter by their logarithm.
_SMALL_NUMBER = 20
_LARGE_NUMBER = 1000
#: The numbers of parts of a day, a week or a year, up to the minutes of a day.
_LARGEST_TIME_PART = 1440
#: The beginnings of 2000 and 2036, in seconds since 1970; and the units in which such times are written.
_UNIX_TIMES = (946_684_800, 2_082_758_400)
_UNITS = (1, 10**3, 10**6, 10**9)
_DATE = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([ T]\d{1,2}:.*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}( \d{1,2}:.*)?")
_SEPARATORS = "|;"
_PAST = "times of the past do not come back"
_LARGEST_WEIGHT = 1_000_000


@dataclass(frozen=True, slots=True)
class Use:
    """The use of a column. `whole`: its ids are whole numbers that are written with a point."""

    column: ColumnStats
    role: Role
    reason: str
    whole: bool = False


def separator_of(data: DataStats) -> tuple[str, tuple[str, ...]] | None:
    """Return the character between the ids in cells of text, and the columns with such cells; None without any."""
    if data.format not in {"CSV", "TSV"}:
        return None
    found: Counter[str] = Counter()
    columns: dict[str, list[str]] = {}
    for column in (each for each in data.columns if each.kind == "text"):
        for sign in _SEPARATORS:
            if sum(sign in value for value, _ in column.values) * 3 > len(column.values):
                found[sign] += 1
                columns.setdefault(sign, []).append(column.name)
    if not found:
        return None
    sign = found.most_common(1)[0][0]
    return sign, tuple(columns[sign])


def uses_of(data: DataStats, label: str) -> tuple[Use, ...]:
    """Return the use of each column but the label, in the order of the data."""
    rows = data.rows if data.read is None else data.read
    found = [_use(each, rows) for each in data.columns if each.name != label]
    weights = [each for each in found if each.role == "Weight"]
    if len(weights) > 1:
        several = "several columns are named as weights of samples, and a job has one"
        found = [Use(each.column, "Unused", several) if each in weights else each for each in found]
    return tuple(found)


def _use(column: ColumnStats, rows: int) -> Use:
    decisions: tuple[Callable[[ColumnStats], Use | None], ...] = (
        *(_unreadable, _outcome, _list),
        partial(_unique, rows=rows),
        *(_time, _weight, _number),
    )
    for decide in decisions:
        if (use := decide(column)) is not None:
            return use
    if kinds.is_numeric(column.kind):
        cause = "ids, by its name" if ID_WORDS & {*words(column.name)} else "whole numbers"
        return Use(column, "Ids", cause, not kinds.is_integer(column.kind))
    if kinds.is_text(column.kind):
        return Use(column, "Ids", column.kind)
    return _unused(column, f"{column.kind} is neither a number nor an id")


def _unused(column: ColumnStats, reason: str) -> Use:
    return Use(column, "Unused", reason)


def _unreadable(column: ColumnStats) -> Use | None:
    if not 0 < len(column.name) <= _MAX_NAME:
        return _unused(column, "a manifest cannot state its name")
    if column.distinct is None:
        return _unused(column, f"{column.kind} is neither a value nor a list of values")
    if column.distinct == 0:
        return _unused(column, "it is empty")
    if column.distinct == 1 and not column.missing and column.bag_mean is None:
        return _unused(column, f"it is {column.values[0][0]!r} in every row" if column.values else "it is constant")
    return None


def _outcome(column: ColumnStats) -> Use | None:
    name, two = joined(column.name), (column.distinct or 0) <= 2  # noqa: PLR2004 -- an outcome has two values
    if name in LABELS or name in RATINGS or (name in OUTCOMES and two):
        return _unused(column, "its name is that of an outcome, which is unknown when a row is scored")
    return None


def _list(column: ColumnStats) -> Use | None:
    if not column.kind.startswith(_LIST):
        return None
    if not kinds.is_text(column.kind.removeprefix(_LIST)):
        return _unused(column, f"a {column.kind} is no bag of ids")
    return Use(column, "Bag", f"{column.bag_mean:.1f} ids a row, at most {column.bag_most}: their vectors are averaged")


def _time(column: ColumnStats) -> Use | None:
    if kinds.is_time(column.kind) or joined(column.name) in TIMES or _is_date(column):
        return _unused(column, _PAST)
    found, low, high = words(column.name), column.lowest, column.highest
    if low is None or high is None or not column.whole:
        return None
    if any(_UNIX_TIMES[0] * unit <= low <= high < _UNIX_TIMES[1] * unit for unit in _UNITS):
        return _unused(column, f"its numbers are those of seconds since 1970: {_PAST}")
    if not TIME_WORDS & {*found} or QUANTITY_WORDS & {*found}:
        return None
    if low >= 0 and high <= _LARGEST_TIME_PART:
        return Use(column, "Ids", "parts of a day, a week or a year", not kinds.is_integer(column.kind))
    return None if found[-1] == "time" else _unused(column, _PAST)  # such as a watch time


def _is_date(column: ColumnStats) -> bool:
    return column.kind == "text" and bool(column.values) and all(_DATE.fullmatch(value) for value, _ in column.values)


def _unique(column: ColumnStats, rows: int) -> Use | None:
    present = rows - column.missing
    if present < _FEW_ROWS or (column.distinct or 0) < _UNIQUE * present or QUANTITY_WORDS & {*words(column.name)}:
        return None
    if kinds.is_numeric(column.kind) and not column.whole:
        return None
    return _unused(column, "it differs in nearly every row, so no row of a table would learn")


def _weight(column: ColumnStats) -> Use | None:
    low, high = column.lowest, column.highest
    if joined(column.name) not in WEIGHTS or not kinds.is_numeric(column.kind) or low is None or high is None:
        return None
    if column.missing or not column.finite or low < 0 or high > _LARGEST_WEIGHT:
        return _unused(
            column, "it is named as a weight of samples, and has missing or negative cells, or too large ones"
        )
    return Use(column, "Weight", "by its name; a job weights the loss of each sample by it")


def _number(column: ColumnStats) -> Use | None:
    if column.kind == "bool":
        return Use(column, "Number", "booleans, as 0 and 1")
    low, high, found = column.lowest, column.highest, words(column.name)
    if not kinds.is_numeric(column.kind) or low is None or high is None:
        return None
    is_id, is_quantity = bool(ID_WORDS & {*found}), bool(QUANTITY_WORDS & {*found})
    if not column.whole:
        cause = "fractions"
    elif is_quantity and not (is_id and found[-1] in ID_WORDS):
        cause = "a quantity, by its name,"
    elif low < -1 and not is_id:
        cause = "negative numbers"
    else:
        return None
    if not column.finite:
        return _unused(column, "it has NaN or infinite cells, which are no numbers; write empty cells in their place")
    spread = f"{cause} from {low:g} to {high:g}"
    if high > _LARGE_NUMBER or (high > _SMALL_NUMBER and low >= -1):
        return Use(column, "Count", f"{spread}: as log(1 + x)")
    return Use(column, "Number", spread)
