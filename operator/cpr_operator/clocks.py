"""Timestamps of other clocks.

A timestamp of the API server or of a kubelet is never compared with this operator's clock. A pod's deadline and its
grace period count from the time when this operator first saw the pod, or its deletion. After a restart they start
again, because a grace period that is too long only delays, and one that is too short lets two processes of a shard
serve.

Timestamps in a job's status are of the clock of the operator that wrote them, which may have been another replica.
They bound pauses and windows only, and `elapsed_s` measures them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from cpr_operator.cluster.views import PodView

#: The grace period of a deletion that names none: the default of Kubernetes.
_GRACE_S = 30


def elapsed_s(since: float, now: float) -> float:
    """Seconds since a timestamp of the status; 0 if another operator's clock was ahead."""
    return max(now - since, 0.0)


@dataclass(frozen=True, slots=True)
class _Seen:
    """The time when this operator first saw a pod, and its deletion.

    mark: the server's deletionTimestamp, which only distinguishes deletions.
    until: the end of the grace period, which begins when the mark is first seen.
    """

    pod_at: float
    mark: float | None = None
    until: float | None = None

    def with_mark(self, pod: PodView, now: float) -> _Seen:
        """The record with the pod's deletion: a second one may shorten the grace period."""
        if pod.deleting_until is None or pod.deleting_until == self.mark:
            return self
        until = now + (_GRACE_S if pod.deletion_grace_s is None else pod.deletion_grace_s)
        return _Seen(self.pod_at, pod.deleting_until, until if self.until is None else min(self.until, until))


class FirstSeen:
    """The times when this operator first saw the pods of one job."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def own(self, pods: Iterable[PodView], now: float) -> tuple[PodView, ...]:
        """Return these pods with `created` and `deleting_until` by this operator's clock. All others are forgotten."""
        pods = tuple(pods)
        self._seen = {pod.uid: self._seen.get(pod.uid, _Seen(now)).with_mark(pod, now) for pod in pods}
        seen = (self._seen[pod.uid] for pod in pods)
        return tuple(replace(p, created=s.pod_at, deleting_until=s.until) for p, s in zip(pods, seen, strict=True))
