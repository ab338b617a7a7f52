"""The spans that end with a change of a job's status: recoveries, replaced members, and saves.

Identifiers are digests of facts in the status. A recovery that one operator began and another one ended is therefore
one trace, and a span that is sent twice is the same span.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from cpr_operator.api.status import FailureRecord, Member, Status
from cpr_operator.desired.names import JobId

RECOVERY, REPLACEMENT, RESTART, SAVE = "recovery", "replace member", "restart in place", "save"
IN_PLACE = "InPlace"

Value = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Span:
    """A span by the data model of OpenTelemetry. Times are seconds since the epoch.

    trace: identifies the trace. key: identifies the span in it; `parent` is the key of another span, empty for none.
    events: names and times of moments within the span.
    """

    name: str
    trace: str
    key: str
    begin_s: float
    end_s: float
    parent: str = ""
    attributes: Mapping[str, Value] = field(default_factory=dict)
    events: tuple[tuple[str, float], ...] = ()

    @property
    def trace_id(self) -> int:
        """The identifier of the trace: 16 bytes."""
        return _digest(self.trace, 16)

    @property
    def span_id(self) -> int:
        """The identifier of the span: 8 bytes."""
        return _digest(f"{self.trace}/{self.key}", 8)

    @property
    def parent_id(self) -> int | None:
        """The identifier of the span above it: 8 bytes; None for the first one of a trace."""
        return _digest(f"{self.trace}/{self.parent}", 8) if self.parent else None


def ended_spans(job: JobId, before: Status, after: Status, now: float, commit_s: float | None) -> tuple[Span, ...]:
    """Return the spans that ended between two statuses of a job; `after` was written at `now`.

    commit_s: seconds from the cut to the commit of the newest anchor, by the leader's report; None without one.
    """
    about: dict[str, Value] = {"k8s.namespace.name": job.namespace, "cprjob.name": job.name, "cprjob.uid": job.uid}
    found = (
        *_recovery(job, before, after, now),
        *_restarts(job, before, after),
        *_save(job, before, after, now, commit_s),
    )
    # Another operator, with another clock, may have written the beginning.
    return tuple(
        replace(span, begin_s=min(span.begin_s, span.end_s), attributes=about | dict(span.attributes)) for span in found
    )


def _recovery(job: JobId, before: Status, after: Status, now: float) -> Iterator[Span]:
    """Yield a span for each member that is at work again, and one for the whole once training continues."""
    under_way = before.recovery
    if under_way is None:
        return
    trace = f"{job.uid}/{RECOVERY}/{under_way.since}"
    earlier = {member.name: member for member in (*before.shards, *before.trainers)}
    for member in (*after.shards, *after.trainers):
        was = earlier.get(member.name)
        if was is not None and was.lost_at is not None and member.lost_at is None:
            yield _replacement(trace, member, was.lost_at, now)
    if after.recovery is not None:
        return
    pending = {each.identity for each in before.failures if each.recovery_seconds is None and not each.process}
    failures = [each for each in after.failures if each.identity in pending]
    attributes: dict[str, Value] = {
        "cprjob.recovery.kind": under_way.kind,
        "cprjob.recovery.reason": under_way.reason,
        "cprjob.recovery.lost_members": len(failures),
        "cprjob.recovery.lost_samples": sum(each.lost_samples or 0 for each in failures),
        "cprjob.recovery.load_seconds": under_way.load_seconds,
        "cprjob.phase": after.phase,
    }
    seen = [(f"lost {each.role}/{each.index}: {each.kind}", each.time) for each in failures]
    events = (*seen, ("decided", under_way.since))
    begin_s = min(time_s for _, time_s in events)
    yield Span(RECOVERY, trace, RECOVERY, begin_s, now, "", attributes, events)


def _replacement(trace: str, member: Member, lost_at: float, now: float) -> Span:
    events = (("pod requested", member.started_at),) if member.started_at is not None else ()
    key = f"{member.name}-{member.incarnation}"
    return Span(REPLACEMENT, trace, key, lost_at, now, RECOVERY, _process(member), events)


def _restarts(job: JobId, before: Status, after: Status) -> Iterator[Span]:
    """Yield a span for each process that restarted in its pod, once the pod has reported how long that took."""
    reported = {each.identity for each in before.failures if each.recovery_seconds is not None}
    for each in after.failures:
        if each.tier != IN_PLACE or each.recovery_seconds is None or each.identity in reported:
            continue
        key = "-".join(map(str, each.identity))
        # The operator detects it afterwards; the duration is the pod's own.
        yield Span(RESTART, f"{job.uid}/{key}", key, each.time - each.recovery_seconds, each.time, "", _process(each))


def _process(of: Member | FailureRecord) -> dict[str, Value]:
    return {
        "cprjob.role": of.role,
        "cprjob.index": of.index,
        "cprjob.incarnation": of.incarnation,
        "k8s.pod.name": of.pod,
        "k8s.node.name": of.node,
    }


def _save(job: JobId, before: Status, after: Status, now: float, commit_s: float | None) -> Iterator[Span]:
    """Yield a span for the newest anchor, if it is a new one. Anchors between two reports have none."""
    known = {anchor.key for anchor in before.anchors}
    newest = after.anchors[-1] if after.anchors else None
    if newest is None or newest.key in known or commit_s is None:
        return
    attributes: dict[str, Value] = {
        "cprjob.step": newest.step,
        "cprjob.samples": newest.samples,
        "cprjob.generation": newest.generation,
        "cprjob.anchor": newest.key,
    }
    yield Span(SAVE, f"{job.uid}/{newest.key}", SAVE, now - commit_s, now, "", attributes)


def _digest(text: str, size: int) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:size])
