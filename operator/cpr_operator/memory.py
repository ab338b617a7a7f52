"""What the controller remembers of a job between its passes.

Nothing depends on it: after a restart of the operator there is none of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cpr_operator.api.status import Status
from cpr_operator.cluster.protocol import Priority
from cpr_operator.cluster.views import JobView, PodView
from cpr_operator.guarding import Guarded
from cpr_operator.reconcile import Job

#: A refused create is tried again after so long, doubling up to the last.
FIRST_RETRY_S, LAST_RETRY_S = 5.0, 60.0
#: Passes that are further apart than so many times what is usual leave a gap: the operator was away.
GAP = 3
#: The last words of so many pods are kept per job.
MAX_LAST_WORDS = 2048


@dataclass(slots=True)
class Memory:
    """What is known of one job, and may be forgotten at any time.

    `guarded` is about the objects around the pods. `refusals` are the server's words by pod name. `urgency` is that of
    the last pass. `events` counts what a watch saw of the job's pods, and `listed` how much of it there was when they
    were listed last. `version` is the resourceVersion of the last status written, and `written_at` its time.
    `unheard` says that the leader did not answer. `job` is the job as it was read last, at `read_version`: its uid and
    resourceVersion.
    """

    guarded: Guarded
    refusals: dict[str, str] = field(default_factory=dict)
    retry_at: float = 0.0
    retry_s: float = FIRST_RETRY_S
    last_words: dict[str, PodView] = field(default_factory=dict)
    watched_since: float | None = None
    looked_at: float = 0.0
    written_at: float = float("-inf")
    version: str = ""
    terminating: bool = False
    urgency: Priority = Priority.START
    events: int = 0
    listed: int = 0
    unheard: bool = False
    job: Job | None = None
    read_version: tuple[str, str] = ("", "")

    @property
    def reading(self) -> Priority:
        """The urgency of a pass that begins now."""
        stirred = self.events > self.listed
        return Priority.RECOVERY if stirred and self.urgency is Priority.REGULAR else self.urgency

    def saw(self, pod: PodView) -> None:
        """A watch saw the pod: its last words count, if it has ended."""
        self.events += 1
        if pod.ended and len(self.last_words) < MAX_LAST_WORDS:
            self.last_words[pod.uid] = pod

    def watched_s(self, now: float, usual_s: float) -> float:
        """How long passes have followed each other as they should: every `usual_s` or somewhat later."""
        if self.watched_since is None or now > self.looked_at + GAP * usual_s:
            self.watched_since = now
        self.looked_at = now
        return now - self.watched_since

    def own_pods(self, view: JobView, listed: tuple[PodView, ...]) -> tuple[PodView, ...]:
        """This job's pods, and those that are gone but left their last words; not an earlier job's of the name."""
        present = {pod.uid for pod in listed}
        gone = tuple(pod for uid, pod in self.last_words.items() if uid not in present)
        return tuple(pod for pod in (*listed, *gone) if pod.owner_uid == view.uid)

    def forget_words(self, listed: tuple[PodView, ...], *statuses: Status) -> None:
        """Last words are kept while somebody's entry still names their pod, before the pass or after it."""
        kept = {pod.uid for pod in listed}
        for status in statuses:
            kept |= {member.uid for member in status.members}
            kept |= {shard.predecessor.uid for shard in status.shards if shard.predecessor}
        self.last_words = {uid: pod for uid, pod in self.last_words.items() if uid in kept}

    def were_refused(self, pods: Mapping[str, str], now: float) -> None:
        """Creates were tried, and these refused."""
        self.refusals = dict(pods)
        self.retry_s = min(2 * self.retry_s, LAST_RETRY_S) if pods else FIRST_RETRY_S
        self.retry_at = now + self.retry_s if pods else 0.0
