"""The values of a pass: what it sees, the state that its phases work on, and what it wants."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from cpr_contract.reports import ShardReport, TrainerReport
from cpr_operator.api.spec import CPRJobSpec
from cpr_operator.api.status import Status
from cpr_operator.cluster.protocol import Event, Manifest, PodPatch
from cpr_operator.cluster.views import JobView, PodView, PodWarning
from cpr_operator.desired.names import JobId
from cpr_operator.desired.template import Restriction
from cpr_operator.failures import Failure, Trouble
from cpr_operator.reconcile.queue import Queue

Report = ShardReport | TrainerReport


class EventReason(enum.StrEnum):
    """The closed list of reasons of the operator's events."""

    QUEUED = "Queued"
    ADMITTED = "Admitted"
    STARTED = "Started"
    RUNNING = "Running"
    PLANNED = "Planned"
    MEMBER_LOST = "MemberLost"
    RESTARTED_IN_PLACE = "RestartedInPlace"
    REBUILT = "Rebuilt"
    SPARE_PROMOTED = "SparePromoted"
    NO_SPARE = "NoSpare"
    REPLACING = "Replacing"
    ROLLING_BACK = "RollingBack"
    RECOVERED = "Recovered"
    MEETING = "Meeting"
    SUSPENDING = "Suspending"
    SUSPENDED = "Suspended"
    RESUMED = "Resumed"
    REFUSED = "Refused"
    POD_STUCK = "PodStuck"
    SNAPSHOTS_DEGRADED = "SnapshotsDegraded"
    DATA_OUTDATED = "DataOutdated"
    IDS_SPELLED_TWICE = "IdsSpelledTwice"
    PRECISION_EMULATED = "PrecisionEmulated"
    SPILL_UNAVAILABLE = "SpillUnavailable"
    REPLAY_MEMORY_SHORT = "ReplayMemoryShort"
    BUDGET_EXHAUSTED = "BudgetExhausted"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    INVALID = "Invalid"
    SAVES_DELETED = "SavesDeleted"
    SAVES_LEFT = "SavesLeft"


@dataclass(frozen=True, slots=True)
class Job:
    """A CPRJob, read and validated. `has_finalizer`: ours is on it."""

    id: JobId
    spec_generation: int
    deleting: bool
    spec: CPRJobSpec
    status: Status
    has_finalizer: bool = False


@dataclass(frozen=True, slots=True)
class Timing:
    """How often a job is looked at, in seconds: while it runs, while it changes, and how often progress is written.

    `floor_s` is the least while it runs, however short the intervals between its saves are.
    """

    running_s: float = 15.0
    floor_s: float = 5.0
    changing_s: float = 1.0
    progress_s: float = 15.0


@dataclass(frozen=True, slots=True)
class AdmissionGate:
    """Why no new job may start: status, reason and message of the condition CRDOutdated."""

    status: Literal["True", "Unknown"]
    reason: str
    message: str


@dataclass(frozen=True)
class ReconcileInput:
    """Everything that one pass decides on.

    `pods` are the job's own, including those that are gone but whose end was seen. `reports` are by
    pod uid, and are fetched after the pods were listed. `lost_node` is a node whose members'
    heartbeats are overdue and on which no pod's kernel answers, empty if there is none. `refusals`
    are by pod name: the server's words about a create that certainly did not happen. `admission_gate` says
    why new jobs are not started. Of a job that is being deleted `kept_anchors` are the keys of
    anchors that others restore from, and `terminating` says that nothing can be created in its
    namespace. `leader_unresponsive` says that the leader did not answer in the pass before. `watched_s` is how
    long this operator has been there without a gap, as far as the job could tell. `key_digest` is
    what a new handshake key would be called, and `key_lost` says that the Secret of the present one
    is gone. `restriction` is what pod templates may say; None: anything. `source_jobs` are the jobs
    among which a new one may choose the anchor that it starts from. `queue` is what Kueue says of
    the job, None if it stands in no queue. `restart_rules` says whether the cluster begins containers
    again in their pods; it is asked for a job that may start. `ending` has the uids of trainers whose
    kubelets are waited for to tell that they have ended. `warnings` are the newest Warning events of
    pods that do not start, by their uids.
    """

    job: Job
    pods: tuple[PodView, ...]
    reports: Mapping[str, Report]
    now: float
    lost_node: str = ""
    refusals: Mapping[str, str] = field(default_factory=dict)
    admission_gate: AdmissionGate | None = None
    kept_anchors: tuple[str, ...] = ()
    terminating: bool = False
    leader_unresponsive: bool = False
    watched_s: float = 0.0
    key_digest: str = ""
    key_lost: bool = False
    restriction: Restriction | None = None
    source_jobs: tuple[JobView, ...] = ()
    queue: Queue | None = None
    ending: frozenset[str] = frozenset()
    restart_rules: bool = False
    warnings: Mapping[str, PodWarning] = field(default_factory=dict)
    timing: Timing = Timing()

    @property
    def before(self) -> Status:
        """The status that the pass begins with."""
        return self.job.status

    @cached_property
    def pods_by_uid(self) -> Mapping[str, PodView]:
        """The pods by their uid."""
        return {pod.uid: pod for pod in self.pods}


@dataclass(frozen=True, slots=True)
class NoPod:
    """No pod was ever wanted."""


@dataclass(frozen=True, slots=True)
class NeverSeen:
    """Wanted, never seen. With a `refusal` its create certainly did not happen; else it may have."""

    refusal: str


@dataclass(frozen=True, slots=True)
class Active:
    """It starts or runs; `trouble` says why it does not run yet."""

    pod: PodView
    trouble: Trouble | None


@dataclass(frozen=True, slots=True)
class Terminating:
    """Somebody deletes it, and its process may still save what it holds, until `until`."""

    pod: PodView
    failure: Failure
    until: float


@dataclass(frozen=True, slots=True)
class Done:
    """A trainer that trained everything: `message` is what it left in its termination file."""

    message: str


@dataclass(frozen=True, slots=True)
class Lost:
    """It has ended, or cannot be reached. `pod` is None if it is gone."""

    pod: PodView | None
    failure: Failure


Fact = NoPod | NeverSeen | Active | Terminating | Done | Lost


@dataclass(frozen=True, slots=True)
class PodDelete:
    """Delete the pod of this uid, with its own grace or another."""

    name: str
    uid: str
    reason: str
    grace_s: int | None = None


@dataclass(frozen=True, slots=True)
class CreateWorkload:
    """The job enters its queue."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class DeleteWorkload:
    """The job leaves its queue, with all quota."""

    name: str


@dataclass(frozen=True, slots=True)
class WorkloadStatus:
    """These fields of the Workload's status change, if it is still as it was read."""

    read: Manifest
    status: Mapping[str, Any]


WorkloadChange = CreateWorkload | DeleteWorkload | WorkloadStatus


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a pass wants, in the order in which it is done: status first, events last.

    `needs_prerequisites`: the objects that pods need must exist; before and after they do not. `release`: remove the
    finalizer of a job that is being deleted, last of all. `stalled`: training stands still, and the job is about to
    recover. `workload`: the change of the job's Workload.
    """

    status: Status
    creates: tuple[Manifest, ...] = ()
    deletes: tuple[PodDelete, ...] = ()
    rosters: tuple[PodPatch, ...] = ()
    needs_prerequisites: bool = False
    events: tuple[Event, ...] = ()
    wake_after_s: float | None = None
    delete_job: bool = False
    release: bool = False
    stalled: bool = False
    workload: WorkloadChange | None = None


@dataclass(frozen=True, slots=True)
class ReconcileState:
    """What a pass has made of the job so far: each phase takes a state and returns the next one.

    `status` is the status as it is now, `before` the one that the pass began with. `facts` are by
    the names of the members. `deletes` are the pods to delete; None: those that were replaced.
    """

    observed: ReconcileInput
    status: Status
    facts: Mapping[str, Fact] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    deletes: tuple[PodDelete, ...] | None = None

    @property
    def before(self) -> Status:
        """The status that the pass began with."""
        return self.observed.before

    @property
    def spec(self) -> CPRJobSpec:
        """The job's spec."""
        return self.observed.job.spec

    @property
    def now(self) -> float:
        """The time of the pass, in seconds since the epoch."""
        return self.observed.now

    def to(self, status: Status, *events: Event) -> ReconcileState:
        """The state with this status, and these events after those before."""
        return replace(self, status=status, events=self.events + events)
