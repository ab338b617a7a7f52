"""How large a job and its reports may be. Both sides hold to it: a larger report is no answer."""

from __future__ import annotations

from dataclasses import dataclass

MAX_SHARDS = 1024
MAX_SPARES = 64
MAX_TRAINERS = 256
MAX_MEMBERS = MAX_SHARDS + MAX_TRAINERS
#: Threads of a trainer that compute parts of its slice side by side.
MAX_WORKERS = 64
#: Anchors that a job keeps restorable.
MAX_ANCHORS = 128
#: Ranges of lost samples: of one member in its report, and of all shards together in the status.
MAX_RANGES = 4096
MAX_METRICS = 32
#: Processes of one member that ended and whose times its report tells, the last ones.
MAX_LIVES = 8
#: Groups of samples that scores are told of one by one.
MAX_GROUPS = 20

#: The bytes of a report without the members that it names: 2,048 lost ranges of twelve digits, and all anchors.
_REPORT_BYTES = 128 << 10
#: What a leader says of each member: two numbers, and its name in three lists.
_MEMBER_BYTES = 128


@dataclass(frozen=True, slots=True)
class AtMost:
    """The longest that a list may be, in the annotation of its field."""

    items: int


def longest_report(members: int) -> int:
    """The bytes of the longest report in a job of so many shards and trainers."""
    return _REPORT_BYTES + _MEMBER_BYTES * members
