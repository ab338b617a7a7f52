"""The controller's cache of a job between two passes.

No decision needs it to be correct, because a restart of the operator loses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cpr_contract.records import MOST_EVENTS, RecordedEvent
from cpr_contract.reports import Recorded
from cpr_operator.api.status import Status
from cpr_operator.clocks import FirstSeen
from cpr_operator.cluster.certificates import KeyPair
from cpr_operator.cluster.protocol import Priority
from cpr_operator.cluster.rate_limiter import backoff_s
from cpr_operator.cluster.views import JobView, PodView, PodWarning
from cpr_operator.controller.prerequisites import PodPrerequisites
from cpr_operator.reconcile import Job
from cpr_operator.reconcile.types import Obstacle

#: Seconds until a refused create is retried, doubling from the first to the last.
FIRST_RETRY_S, LAST_RETRY_S = 10.0, 60.0
#: Passes further apart than this multiple of the usual time mean that the operator did not run.
GAP = 3
#: A kubelet that could not write a pod's status tries again every 10 seconds.
KUBELET_S = 30.0
#: Seconds until the events of a pod that does not start are read again.
LOOK_UP_S = 30.0
#: The maximum number of ended pods to remember per job.
MAX_ENDED_PODS = 2048


@dataclass(slots=True)
class JobCache:
    """The controller's memory of one job. It may be lost at any time.

    prerequisites: the state of the objects that the pods need.
    refusals: the server's messages about refused creates, by pod name. refused_passes: passes in a row with refusals.
    first_seen: when this operator first saw the pods.
    warnings: when events of pods were read, and the newest Warning, by pod uid.
    ended_pods: pods that have ended, with their termination messages, by uid.
    priority: that of the last pass.
    events: the number of pod events from the watch.
    listed: that number when the pods were last listed.
    written_at: the time of the last written status.
    leader_unresponsive: True if the leader did not answer in the last pass.
    unreported: since when trainers have most likely ended without a report of their kubelets, by uid.
    workload_refused: the server's message if it refused the last change of the job's Workload.
    request_obstacle: the server's answer if it refused the last change of a CertificateRequest.
    job: the job as last read, at `read_version`, which is its uid and resourceVersion.
    checked: uid and metadata.generation of the last spec that was found valid.
    roster_note: the leader's pod, by uid, and the note that its roster's annotation has.
    identity: the operator's, if the job is encrypted. identity_refused: the server's message if it cannot be read.
    recorded_events: events of this operator, by their keys, oldest first. recorded_at: the time of the last record.
    """

    prerequisites: PodPrerequisites
    refusals: dict[str, str] = field(default_factory=dict)
    retry_at: float = 0.0
    refused_passes: int = 0
    first_seen: FirstSeen = field(default_factory=FirstSeen)
    warnings: dict[str, tuple[float, PodWarning | None]] = field(default_factory=dict)
    ended_pods: dict[str, PodView] = field(default_factory=dict)
    watched_since: float | None = None
    last_pass_at: float = 0.0
    written_at: float = float("-inf")
    terminating: bool = False
    priority: Priority = Priority.START
    events: int = 0
    listed: int = 0
    leader_unresponsive: bool = False
    unreported: dict[str, float] = field(default_factory=dict)
    workload_refused: str = ""
    request_obstacle: Obstacle | None = None
    job: Job | None = None
    read_version: tuple[str, str] = ("", "")
    checked: tuple[str, int] = ("", 0)
    roster_note: tuple[str, Recorded] | None = None
    identity: KeyPair | None = None
    identity_refused: str = ""
    recorded_events: dict[str, RecordedEvent] = field(default_factory=dict)
    recorded_at: float | None = None

    @property
    def read_priority(self) -> Priority:
        """The priority of the reads of a pass that starts now."""
        changed = self.events > self.listed
        return Priority.RECOVERY if changed and self.priority is Priority.REGULAR else self.priority

    def on_pod_event(self, pod: PodView) -> None:
        """Count a pod event of the watch. An ended pod is remembered with its termination message."""
        self.events += 1
        if pod.ended and len(self.ended_pods) < MAX_ENDED_PODS:
            self.ended_pods[pod.uid] = pod

    def watched_s(self, now: float, usual_s: float) -> float:
        """Seconds since which passes have run without a gap, about every `usual_s` seconds."""
        if self.watched_since is None or now > self.last_pass_at + GAP * usual_s:
            self.watched_since = now
        self.last_pass_at = now
        return now - self.watched_since

    def ending(self, unreported: frozenset[str], now: float) -> frozenset[str]:
        """The pods with an unreported end that their kubelets may still report."""
        self.unreported = {uid: self.unreported.get(uid, now) for uid in unreported}
        return frozenset(uid for uid, since in self.unreported.items() if now - since < KUBELET_S)

    def own_pods(self, view: JobView, listed: tuple[PodView, ...], now: float) -> tuple[PodView, ...]:
        """The job's pods, listed or ended, with times of this operator's clock.

        Pods of an earlier job of the same name are left out.
        """
        present = {pod.uid for pod in listed}
        ended = tuple(pod for uid, pod in self.ended_pods.items() if uid not in present)
        return self.first_seen.own((pod for pod in (*listed, *ended) if pod.owner_uid == view.uid), now)

    def to_look_up(self, unexplained: tuple[PodView, ...], now: float) -> PodView | None:
        """The next pod to read events of: those of the longest ago. None if all were read less than `LOOK_UP_S` ago."""
        self.warnings = {pod.uid: found for pod in unexplained if (found := self.warnings.get(pod.uid)) is not None}
        read_at = {pod.uid: self.warnings.get(pod.uid, (float("-inf"), None))[0] for pod in unexplained}
        first = min(unexplained, key=lambda pod: read_at[pod.uid], default=None)
        return first if first is not None and now - read_at[first.uid] >= LOOK_UP_S else None

    def forget_ended(self, listed: tuple[PodView, ...], *statuses: Status) -> None:
        """Forget ended pods that are neither listed nor named by one of the statuses."""
        named = {pod.uid for pod in listed}
        for status in statuses:
            named |= {member.uid for member in status.members}
            named |= {shard.predecessor.uid for shard in status.shards if shard.predecessor}
        self.ended_pods = {uid: pod for uid, pod in self.ended_pods.items() if uid in named}

    def record_event(self, event: RecordedEvent) -> None:
        """Remember an event for the record of the job."""
        self.recorded_events.setdefault(event.key, event)
        if len(self.recorded_events) > MOST_EVENTS:
            del self.recorded_events[next(iter(self.recorded_events))]

    def set_refusals(self, pods: Mapping[str, str], now: float) -> None:
        """Record which creates were refused, and when to retry them."""
        self.refusals = dict(pods)
        self.refused_passes = self.refused_passes + 1 if pods else 0
        self.retry_at = now + backoff_s(self.refused_passes - 1, FIRST_RETRY_S, LAST_RETRY_S) if pods else 0.0
