"""The account of lines that are not in the Criteo format: skipped up to a limit, then an error that names one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from cpr_trainer.errors import DataError

#: How many ragged lines beyond the limit are kept before the parser is stopped. It runs ahead of the cells: stopped
#: at once, it would name its own line where a bad cell before it was the first too many. Not stopped at all, it
#: would go through the whole of a file that is something else.
_PATIENCE = 2**16


@dataclass(frozen=True, slots=True, order=True)
class BadLine:
    """A line (from 1) and what is wrong with it, as the middle of a sentence."""

    line: int
    fault: str


class RaggedRow(Protocol):
    """What pyarrow tells of a line with a wrong number of columns."""

    number: int
    expected_columns: int
    actual_columns: int


class BadLines:
    """Counts the bad lines of one file; at most `limit` may be skipped.

    The parser runs ahead of the conversion, so its ragged lines may lie behind the block at hand: `check` judges
    only up to the line it is given, and so names the same line in every run.
    """

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._limit = limit
        self._ragged: list[BadLine] = []
        self._cells: list[BadLine] = []

    def skip_ragged(self, row: RaggedRow) -> Literal["skip", "error"]:
        """Take a ragged line from the parser; "error" makes it stop, long after the limit is passed."""
        fault = f"it has {row.actual_columns} columns instead of {row.expected_columns}"
        self._ragged.append(BadLine(row.number, fault))
        return "skip" if len(self._ragged) <= self._limit + _PATIENCE else "error"

    def add_cells(self, faults: list[tuple[int, str]]) -> None:
        """Take the bad cells of a block: (parsed row of the file from 0, fault), one for each line at most."""
        lines = self.line_of(np.array([row for row, _ in faults], np.int64))
        self._cells.extend(BadLine(int(line), fault) for line, (_, fault) in zip(lines, faults, strict=True))

    def line_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the line (from 1) of each parsed row of the file (from 0): the ragged lines are no rows."""
        ragged = np.array([bad.line for bad in self._ragged], np.int64)
        rows_before = ragged - 1 - np.arange(len(ragged))
        return rows + 1 + np.searchsorted(rows_before, rows, side="right")

    def check(self, last_line: int | None = None) -> None:
        """Raise DataError if more than `limit` lines up to `last_line` (all lines: None) are bad."""
        if len(self._ragged) + len(self._cells) <= self._limit:
            return
        bad = sorted(one for one in self._ragged + self._cells if last_line is None or one.line <= last_line)
        if len(bad) <= self._limit:
            return  # What is too many lies behind.
        first_too_many = bad[self._limit]
        raise DataError(
            f"{self._name}, line {first_too_many.line}: {first_too_many.fault} "
            f"(bad lines so far: {self._limit + 1}, allowed: {self._limit}).",
            "Correct the line, or allow more bad lines (maxBadLines); those are skipped.",
        )
