"""What is known of a job and can be drawn: its status with the history in it, and what the operator said. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from cpr_operator.api.progress import PointFigures
from cpr_operator.api.status import FailureRecord, Status
from cpr_operator.api.validate import parse_status
from cpr_operator.cluster.local.objects import EventLine
from cpr_operator.reconcile.history import point

#: What became of a failure: `Replayed` and `NothingLost` cost no samples, `Partial` did, and `RolledBack` those of no
#: shard, but the time since the anchor.
Tier = Literal["Replayed", "NothingLost", "Partial", "RolledBack", "UnderWay"]


@dataclass(frozen=True, slots=True)
class Span:
    """A time, in seconds since the epoch, in which a member was at work, or away."""

    member: str
    begin: float
    end: float
    away: bool


@dataclass(frozen=True, slots=True)
class Story:
    """One job. now: when it was looked at. points: how training went, oldest first, the last one as it is now."""

    name: str
    namespace: str
    now: float
    status: Status
    points: tuple[PointFigures, ...]
    said: tuple[EventLine, ...]

    @property
    def end(self) -> float:
        """The end of the job; of one that goes on, now."""
        return self.status.completion_time or self.now

    def samples_at(self, time: float) -> int:
        """Samples that were trained by then, as far as the history tells."""
        return next((each.samples for each in reversed(self.points) if each.time <= time), 0)

    def spans(self) -> Iterator[Span]:
        """When each member was at work and when it was away, member by member. Of those that never failed, all."""
        failed: dict[str, list[FailureRecord]] = {}
        for record in self.status.failures:
            failed.setdefault(f"{record.role}/{record.index}", []).append(record)
        for member in self.status.members:
            begin = self.status.start_time or self.now
            for record in failed.get(member.name, ()):
                back = min(record.time + record.recovery_seconds, self.end) if record.recovery_seconds else self.end
                if record.time > begin:
                    yield Span(member.name, begin, record.time, away=False)
                yield Span(member.name, max(record.time, begin), max(back, begin), away=True)
                begin = max(back, begin)
            if begin < self.end:
                yield Span(member.name, begin, self.end, away=False)


def story_of(job: Mapping[str, Any], said: Iterable[EventLine], now: float) -> Story:
    """The story of a CPRJob object. Raises InvalidStatusError."""
    meta, status = job["metadata"], parse_status(job.get("status") or {})
    points = status.history
    if status.progress.updated is not None and status.progress.total_samples:
        last = point(status, status.progress.updated)
        points = (*(each for each in points if each.time < last.time), last)
    return Story(meta["name"], meta.get("namespace", ""), now, status, points, tuple(said))


def tier(record: FailureRecord) -> Tier:
    """What became of a failure."""
    if record.action == "RollBack":
        return "RolledBack"
    if record.lost_samples is None:
        return "UnderWay"
    if record.lost_samples:
        return "Partial"
    return "Replayed" if record.replayed_samples else "NothingLost"


def speeds(points: tuple[PointFigures, ...]) -> list[float | None]:
    """Samples a second from each point to the next, pauses included; first None, and None across a rollback."""
    return [None, *(_speed(before, after) for before, after in pairwise(points))] if points else []


def _speed(before: PointFigures, after: PointFigures) -> float | None:
    took_s = after.time - before.time
    if took_s <= 0 or after.generation != before.generation:
        return None
    return (after.samples - before.samples) / took_s
