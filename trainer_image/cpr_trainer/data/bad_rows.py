"""How many rows may be left out, and which is the first too many."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock

from cpr_trainer.errors import DataError


class BadRows:
    """Counts the bad rows that were met; at most `limit` may be left out. Safe to use from several threads.

    Of each block it keeps their number and the text of the last, however many there are.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = Lock()
        self._met: dict[int, tuple[int, str]] = {}
        self._total = 0

    def add(self, block: int, faults: Mapping[int, str], place: Callable[[int], str]) -> None:
        """Note the faults of a block's rows, by row; `place` names one. Raises DataError if there are too many by now.

        The error names a row that has at least `limit` bad ones before it, in the order of the data: the first of them
        where it is in this block.
        """
        if not faults:
            return
        last = max(faults)
        with self._lock:
            self._total += len(faults) - self._met.get(block, (0, ""))[0]
            self._met[block] = len(faults), f"{place(last)}: {faults[last]}"
            if self._total <= self._limit:
                return
            number, first = self._first_too_many()
            text, total = self._met[number][1], self._total
        if number == block:
            row = sorted(faults)[first]
            text = f"{place(row)}: {faults[row]}"
        raise DataError(
            f"{text} (bad rows so far: {total}, allowed: {self._limit}).",
            "Correct the row, or allow more bad ones (maxBadLines); those are skipped.",
        )

    def _first_too_many(self) -> tuple[int, int]:
        """Return the block of the first bad row beyond the limit, in the order of the data, and which of its it is."""
        left = self._limit
        for number in sorted(self._met):
            if left < self._met[number][0]:
                return number, left
            left -= self._met[number][0]
        raise ValueError("there are not too many")
