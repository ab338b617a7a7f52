"""Ids that are the numbers of rows: they are checked, not hashed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cpr_contract.model import DEFAULT_ROW, TableSpec
from cpr_trainer.arrays import Ints
from cpr_trainer.data.features import NO_ROW

#: Decimals that int64 holds, whatever their digits are.
_SHORT = "^[0-9]{1,18}$"
_INTEGER_OR_ABSENT = "^(-?[0-9]+)?$"


def rows_of_integers(integers: Any, target: TableSpec) -> Ints:
    """Return the row of each element of a pyarrow array of integers, int64 [n]: `NO_ROW` where there is none."""
    # An unsigned integer beyond int64 becomes a negative one, which is no row either.
    numbers = integers.cast(pa.int64(), safe=False).fill_null(NO_ROW).to_numpy(zero_copy_only=False)
    return _within(numbers, target, np.ones(len(numbers), np.bool_))


def rows_of_texts(texts: Any, target: TableSpec) -> Ints:
    """Return the row of each element of a pyarrow binary array without nulls, int64 [n]: `NO_ROW` where there is none.

    A row's number is written in decimal digits. The empty text is an absent id.
    """
    short = pc.if_else(pc.match_substring_regex(texts, _SHORT), texts, pa.scalar(None, texts.type))
    numbers = short.cast(pa.int64()).fill_null(NO_ROW).to_numpy(zero_copy_only=False)
    return _within(numbers, target, pc.match_substring_regex(texts, _INTEGER_OR_ABSENT).to_numpy(zero_copy_only=False))


def wanted(target: TableSpec) -> str:
    """Say what an id of the table has to be, for a message."""
    if target.ids == "Vocabulary":
        return f"a value of the vocabulary of table {target.name}"
    return "an integer" + (f" from 0 to {target.rows - 1}" if target.out_of_range == "Fail" else "")


def _within(numbers: Ints, target: TableSpec, excused: Any) -> Ints:
    """Put what is `excused` (bool [n]) and outside the table into its default row, if it may be there."""
    instead = np.where(excused, DEFAULT_ROW, NO_ROW) if target.out_of_range == "DefaultRow" else NO_ROW
    return np.where((numbers >= 0) & (numbers < target.rows), numbers, instead)
