"""The kinds of columns, as `cprjob data inspect` prints them: of text, or types of Arrow."""

from __future__ import annotations

import re

_INTEGER = re.compile(r"integer|u?int[0-9]+")
_FRACTIONAL = re.compile(r"float|double|halffloat|decimal.*")
_TIME = re.compile(r"timestamp.*|date(32|64).*|time(32|64).*")
#: Different types of one column in several files.
_OR = " or "


def is_integer(kind: str) -> bool:
    """Return whether all cells are integers."""
    return all(_INTEGER.fullmatch(each) for each in kind.split(_OR))


def is_fractional(kind: str) -> bool:
    """Return whether the column has a type of floating point numbers or decimals. Text has none."""
    return any(_FRACTIONAL.fullmatch(each) for each in kind.split(_OR))


def is_numeric(kind: str) -> bool:
    """Return whether all cells are numbers."""
    return all(each == "number" or _INTEGER.fullmatch(each) or _FRACTIONAL.fullmatch(each) for each in kind.split(_OR))


def is_time(kind: str) -> bool:
    """Return whether the column has a type of points in time."""
    return any(_TIME.fullmatch(each) for each in kind.split(_OR))


def is_text(kind: str) -> bool:
    """Return whether all cells can be ids: text, integers or booleans."""
    return all(each in {"text", "bool"} or _INTEGER.fullmatch(each) for each in kind.split(_OR))
