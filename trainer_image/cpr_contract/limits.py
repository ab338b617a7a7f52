"""Limits of a job and of its reports. Both sides apply them: the operator discards a larger report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MAX_SHARDS = 1024
MAX_SPARES = 64
MAX_TRAINERS = 256
MAX_MEMBERS = MAX_SHARDS + MAX_TRAINERS
#: Threads of a trainer that compute parts of its slice in parallel.
MAX_WORKERS = 64
#: Anchors that a job keeps restorable.
MAX_ANCHORS = 128
#: Ranges of lost samples: of one member in its report, and of all shards together in the status.
MAX_RANGES = 4096
MAX_METRICS = 32
#: Processes of one member that a report lists with their restart times, the last ones.
MAX_RESTART_TIMES = 8
#: Groups of samples with scores of their own.
MAX_GROUPS = 20
#: Dynamic tables with counts in a shard's report and in the status, the first ones of the model.
MAX_COUNTED_TABLES = 32
#: Characters of a group's name in a report; it is a value of the data.
MAX_GROUP_NAME = 128
#: Late files that a report names, the last ones, and the characters of each name, the last ones as well.
MAX_LATE_FILES = 8
MAX_FILE_NAME = 256
#: Characters of a problem's message and of its remedy; the status holds 1,024.
MAX_SENTENCE = 2048

#: The bytes of a report without its members: 2,048 lost ranges of twelve digits, and all anchors.
_REPORT_BYTES = 128 << 10
#: The bytes of each member in a leader's report: two numbers, and its name in three lists.
_MEMBER_BYTES = 128


def first(items: tuple[Any, ...], most: int) -> tuple[Any, ...]:
    """Return the first `most` items."""
    return items[:most]


def last(items: tuple[Any, ...], most: int) -> tuple[Any, ...]:
    """Return the last `most` items."""
    return items[len(items) - most :]


def united(ranges: tuple[tuple[int, int], ...], most: int) -> tuple[tuple[int, int], ...]:
    """Return at most `most` sorted ranges that cover all of these. The smallest gaps are closed."""
    ordered = sorted(ranges)
    by_gap = sorted(range(1, len(ordered)), key=lambda place: ordered[place][0] - ordered[place - 1][1])
    joined = set(by_gap[: max(0, len(ordered) - most)])
    found: list[tuple[int, int]] = []
    for place, (start, end) in enumerate(ordered):
        if place in joined:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class AtMost:
    """The maximum length of a list, in the annotation of its field.

    A reader refuses a longer one. A writer shortens it by `shorten`, to `written` items if that is not 0.
    """

    items: int
    shorten: Callable[[tuple[Any, ...], int], tuple[Any, ...]] = first
    written: int = 0

    def shortened(self, items: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a list shortened to the length that a writer may use."""
        most = self.written or self.items
        return items if len(items) <= most else self.shorten(items, most)


def max_report_bytes(members: int) -> int:
    """Return the maximum bytes of a report in a job with this number of shards and trainers."""
    return _REPORT_BYTES + _MEMBER_BYTES * members
