"""What the controller remembers of a job between passes.

No decision depends on it for correctness, because a restart of the operator loses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cpr_contract.reports import Recorded
from cpr_operator.api.status import Status
from cpr_operator.cluster.protocol import Priority
from cpr_operator.cluster.views import JobView, PodView
from cpr_operator.guarding import Guarded
from cpr_operator.reconcile import Job

#: Seconds until a refused create is retried, doubling from the first to the last.
FIRST_RETRY_S, LAST_RETRY_S = 5.0, 60.0
#: If passes are further apart than this multiple of the usual time, the operator was away.
GAP = 3
#: A kubelet that could not write a pod's status tries again every 10 seconds.
KUBELET_S = 30.0
#: The maximum number of ended pods to remember per job.
MAX_LAST_WORDS = 2048


@dataclass(frozen=True, slots=True)
class FirstSeen:
    """When this operator first saw a pod and its deletion, by its own clock.

    Stamps of the API server's clock cannot be compared with it. `mark` is the server's deletionTimestamp,
    and `until` the end of the grace period, which begins when the mark is first seen.
    """

    pod_at: float
    mark: float | None = None
    until: float | None = None

    def with_mark(self, pod: PodView, now: float) -> FirstSeen:
        """With the pod's deletion as it is now: a second one may shorten the grace period."""
        if pod.deleting_until is None or pod.deleting_until == self.mark:
            return self
        until = pod.deleting_until if pod.deletion_grace_s is None else now + pod.deletion_grace_s
        return FirstSeen(self.pod_at, pod.deleting_until, until if self.until is None else min(self.until, until))


@dataclass(slots=True)
class Memory:
    """What is known of one job, and may be forgotten at any time.

    guarded: the objects around the pods.
    refusals: the server's messages about refused creates, by pod name.
    first_seen: by pod uid.
    last_words: pods that have ended, with their termination messages, by uid.
    urgency: that of the last pass.
    events: the number of pod events that a watch has seen.
    listed: that number when the pods were last listed.
    written_at: the time of the last written status.
    unheard: whether the leader did not answer.
    untold: trainers that have most likely ended, by uid, and since when that is known.
    workload_refused: the server's words about the last change of the job's Workload.
    job: the job as it was last read, at `read_version`, which is its uid and resourceVersion.
    checked: uid and generation of the last spec whose rules were evaluated and hold.
    noted: the leader's pod, by uid, and what was written last into the annotation of its roster, or was found there.
    """

    guarded: Guarded
    refusals: dict[str, str] = field(default_factory=dict)
    retry_at: float = 0.0
    retry_s: float = FIRST_RETRY_S
    first_seen: dict[str, FirstSeen] = field(default_factory=dict)
    last_words: dict[str, PodView] = field(default_factory=dict)
    watched_since: float | None = None
    looked_at: float = 0.0
    written_at: float = float("-inf")
    terminating: bool = False
    urgency: Priority = Priority.START
    events: int = 0
    listed: int = 0
    unheard: bool = False
    untold: dict[str, float] = field(default_factory=dict)
    workload_refused: str = ""
    job: Job | None = None
    read_version: tuple[str, str] = ("", "")
    checked: tuple[str, int] = ("", 0)
    noted: tuple[str, Recorded] | None = None

    @property
    def reading(self) -> Priority:
        """The urgency of a pass that starts now."""
        stirred = self.events > self.listed
        return Priority.RECOVERY if stirred and self.urgency is Priority.REGULAR else self.urgency

    def saw(self, pod: PodView) -> None:
        """Count a pod event of a watch, and keep the pod with its termination message if it has ended."""
        self.events += 1
        if pod.ended and len(self.last_words) < MAX_LAST_WORDS:
            self.last_words[pod.uid] = pod

    def watched_s(self, now: float, usual_s: float) -> float:
        """Seconds since which passes have run without a gap, about every `usual_s` seconds."""
        if self.watched_since is None or now > self.looked_at + GAP * usual_s:
            self.watched_since = now
        self.looked_at = now
        return now - self.watched_since

    def ending(self, untold: frozenset[str], now: float) -> frozenset[str]:
        """Those of the pods with an untold end whose kubelets are still waited for."""
        self.untold = {uid: self.untold.get(uid, now) for uid in untold}
        return frozenset(uid for uid, since in self.untold.items() if now - since < KUBELET_S)

    def own_pods(self, view: JobView, listed: tuple[PodView, ...], now: float) -> tuple[PodView, ...]:
        """This job's listed pods, and its ended pods that are gone from the list, with times of this operator's clock.

        Pods of an earlier job of the same name are left out.
        """
        present = {pod.uid for pod in listed}
        gone = tuple(pod for uid, pod in self.last_words.items() if uid not in present)
        own = [pod for pod in (*listed, *gone) if pod.owner_uid == view.uid]
        seen = {pod.uid: self.first_seen.get(pod.uid, FirstSeen(now)).with_mark(pod, now) for pod in own}
        self.first_seen = seen
        return tuple(replace(pod, created=seen[pod.uid].pod_at, deleting_until=seen[pod.uid].until) for pod in own)

    def forget_words(self, listed: tuple[PodView, ...], *statuses: Status) -> None:
        """Forget ended pods, unless they are listed or an entry of one of the statuses names them."""
        kept = {pod.uid for pod in listed}
        for status in statuses:
            kept |= {member.uid for member in status.members}
            kept |= {shard.predecessor.uid for shard in status.shards if shard.predecessor}
        self.last_words = {uid: pod for uid, pod in self.last_words.items() if uid in kept}

    def were_refused(self, pods: Mapping[str, str], now: float) -> None:
        """Record which creates were refused, and when to retry them."""
        self.refusals = dict(pods)
        self.retry_s = min(2 * self.retry_s, LAST_RETRY_S) if pods else FIRST_RETRY_S
        self.retry_at = now + self.retry_s if pods else 0.0
