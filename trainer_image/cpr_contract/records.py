"""The record of a job in its store: written by its leader while it trains, and by a pod of its own at its end.

The time is in the key of a record, so a late writer replaces none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cpr_contract.history import history_prefix

#: The most bytes of an encoded record that the operator passes to a pod in an annotation.
MAX_RECORD_BYTES = 48 << 10
#: The newest events of a job in its record.
MOST_EVENTS = 200

_RECORD = re.compile(r"(?P<uid>[^/]+)/history/job-(?P<time_ms>\d+)\.json")


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """An event of a job. `time_s` is in seconds since the epoch; equal keys are the same event."""

    time_s: float
    type: str
    reason: str
    message: str
    key: str


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as the operator saw it at `written_s` (seconds since the epoch): the CPRJob object as JSON, and events."""

    job_uid: str
    written_s: float
    job: str
    events: tuple[RecordedEvent, ...]


def records_prefix(job_uid: str) -> str:
    """The beginning of the keys of a job's records; the time of each follows, and sorts them."""
    return f"{history_prefix(job_uid)}job-"


def record_key(record: JobRecord) -> str:
    """The key of a record. No two have the same time, and a later one counts."""
    return f"{records_prefix(record.job_uid)}{round(record.written_s * 1000):014d}.json"


def record_job(key: str) -> str | None:
    """Return the uid of the job whose record has this key; None for any other key."""
    found = _RECORD.fullmatch(key)
    return found and found["uid"]
