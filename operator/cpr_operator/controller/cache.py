"""What the controller remembers of a job between passes.

No decision depends on it for correctness, because a restart of the operator loses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cpr_contract.reports import Recorded
from cpr_operator.api.status import Status
from cpr_operator.clocks import Sightings
from cpr_operator.cluster.protocol import Priority
from cpr_operator.cluster.views import JobView, PodView, PodWarning
from cpr_operator.controller.prerequisites import PodPrerequisites
from cpr_operator.reconcile import Job

#: Seconds until a refused create is retried, doubling from the first to the last.
FIRST_RETRY_S, LAST_RETRY_S = 5.0, 60.0
#: If passes are further apart than this multiple of the usual time, the operator was away.
GAP = 3
#: A kubelet that could not write a pod's status tries again every 10 seconds.
KUBELET_S = 30.0
#: Seconds until the events of a pod that does not start are looked up again.
LOOK_UP_S = 30.0
#: The maximum number of ended pods to remember per job.
MAX_ENDED_PODS = 2048


@dataclass(slots=True)
class JobCache:
    """What is known of one job, and may be forgotten at any time.

    prerequisites: the objects around the pods.
    refusals: the server's messages about refused creates, by pod name.
    sightings: when this operator first saw the pods.
    warnings: when events of pods were looked up, and the newest Warning, by pod uid.
    ended_pods: pods that have ended, with their termination messages, by uid.
    priority: that of the last pass.
    events: the number of pod events that a watch has seen.
    listed: that number when the pods were last listed.
    written_at: the time of the last written status.
    leader_unresponsive: whether the leader did not answer.
    unreported: trainers that have most likely ended, by uid, and since when that is known.
    workload_refused: the server's words about the last change of the job's Workload.
    job: the job as it was last read, at `read_version`, which is its uid and resourceVersion.
    checked: uid and generation of the last spec whose rules were evaluated and hold.
    noted: the leader's pod, by uid, and what was written last into the annotation of its roster, or was found there.
    """

    prerequisites: PodPrerequisites
    refusals: dict[str, str] = field(default_factory=dict)
    retry_at: float = 0.0
    retry_s: float = FIRST_RETRY_S
    sightings: Sightings = field(default_factory=Sightings)
    warnings: dict[str, tuple[float, PodWarning | None]] = field(default_factory=dict)
    ended_pods: dict[str, PodView] = field(default_factory=dict)
    watched_since: float | None = None
    looked_at: float = 0.0
    written_at: float = float("-inf")
    terminating: bool = False
    priority: Priority = Priority.START
    events: int = 0
    listed: int = 0
    leader_unresponsive: bool = False
    unreported: dict[str, float] = field(default_factory=dict)
    workload_refused: str = ""
    job: Job | None = None
    read_version: tuple[str, str] = ("", "")
    checked: tuple[str, int] = ("", 0)
    noted: tuple[str, Recorded] | None = None

    @property
    def reading(self) -> Priority:
        """The urgency of a pass that starts now."""
        stirred = self.events > self.listed
        return Priority.RECOVERY if stirred and self.priority is Priority.REGULAR else self.priority

    def on_pod_event(self, pod: PodView) -> None:
        """Count a pod event of a watch, and keep the pod with its termination message if it has ended."""
        self.events += 1
        if pod.ended and len(self.ended_pods) < MAX_ENDED_PODS:
            self.ended_pods[pod.uid] = pod

    def watched_s(self, now: float, usual_s: float) -> float:
        """Seconds since which passes have run without a gap, about every `usual_s` seconds."""
        if self.watched_since is None or now > self.looked_at + GAP * usual_s:
            self.watched_since = now
        self.looked_at = now
        return now - self.watched_since

    def ending(self, unreported: frozenset[str], now: float) -> frozenset[str]:
        """Those of the pods with an unreported end whose kubelets are still waited for."""
        self.unreported = {uid: self.unreported.get(uid, now) for uid in unreported}
        return frozenset(uid for uid, since in self.unreported.items() if now - since < KUBELET_S)

    def own_pods(self, view: JobView, listed: tuple[PodView, ...], now: float) -> tuple[PodView, ...]:
        """This job's listed pods, and its ended pods that are gone from the list, with times of this operator's clock.

        Pods of an earlier job of the same name are left out.
        """
        present = {pod.uid for pod in listed}
        gone = tuple(pod for uid, pod in self.ended_pods.items() if uid not in present)
        return self.sightings.own((pod for pod in (*listed, *gone) if pod.owner_uid == view.uid), now)

    def to_look_up(self, unexplained: tuple[PodView, ...], now: float) -> PodView | None:
        """The pod whose events were looked up longest ago, one for each pass; None if all were looked up lately."""
        self.warnings = {pod.uid: found for pod in unexplained if (found := self.warnings.get(pod.uid)) is not None}
        asked = {pod.uid: self.warnings.get(pod.uid, (float("-inf"), None))[0] for pod in unexplained}
        first = min(unexplained, key=lambda pod: asked[pod.uid], default=None)
        return first if first is not None and now - asked[first.uid] >= LOOK_UP_S else None

    def forget_ended(self, listed: tuple[PodView, ...], *statuses: Status) -> None:
        """Forget ended pods, unless they are listed or an entry of one of the statuses names them."""
        kept = {pod.uid for pod in listed}
        for status in statuses:
            kept |= {member.uid for member in status.members}
            kept |= {shard.predecessor.uid for shard in status.shards if shard.predecessor}
        self.ended_pods = {uid: pod for uid, pod in self.ended_pods.items() if uid in kept}

    def were_refused(self, pods: Mapping[str, str], now: float) -> None:
        """Record which creates were refused, and when to retry them."""
        self.refusals = dict(pods)
        self.retry_s = min(2 * self.retry_s, LAST_RETRY_S) if pods else FIRST_RETRY_S
        self.retry_at = now + self.retry_s if pods else 0.0
