"""The values of one reconciliation: its inputs, the state that its phases pass on, and its outcome."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from cpr_contract.choices import Encryption
from cpr_contract.published import PublisherReport
from cpr_contract.reports import ShardReport, TrainerReport
from cpr_operator.api.cprjob_spec import CPRJobSpec, IssuerRef
from cpr_operator.api.status import Member, Shard, Status, Trainer
from cpr_operator.cluster.protocol import Event, Manifest, PodPatch
from cpr_operator.cluster.views import JobView, PodView, PodWarning
from cpr_operator.desired.names import JobId
from cpr_operator.desired.record import Recording
from cpr_operator.desired.template import Restriction
from cpr_operator.failures import Failure, Trouble
from cpr_operator.reconcile.kueue import Queue

Report = ShardReport | TrainerReport


def leader_of(status: Status) -> Trainer | None:
    """Return the leader; None if there is none, or a smaller group no longer has it."""
    if status.leader is None or status.leader >= len(status.trainers):
        return None
    return status.trainers[status.leader]


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
    LATE_FILES = "LateFiles"
    CERTIFICATE_NOT_ISSUED = "CertificateNotIssued"
    IDS_SPELLED_TWICE = "IdsSpelledTwice"
    PRECISION_EMULATED = "PrecisionEmulated"
    SPILL_UNAVAILABLE = "SpillUnavailable"
    REPLAY_MEMORY_SHORT = "ReplayMemoryShort"
    TABLE_TOO_SMALL = "TableTooSmall"
    PUBLISHING_DEGRADED = "PublishingDegraded"
    BUDGET_EXHAUSTED = "BudgetExhausted"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    INVALID = "Invalid"
    SAVES_DELETED = "SavesDeleted"
    SAVES_LEFT = "SavesLeft"


@dataclass(frozen=True, slots=True)
class Job:
    """A valid CPRJob. `has_finalizer`: it carries the operator's finalizer."""

    id: JobId
    spec_generation: int
    deleting: bool
    spec: CPRJobSpec
    status: Status
    has_finalizer: bool = False


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds between reconciliations of a job that runs (at least `floor_s`) or changes; between progress writes."""

    running_s: float = 15.0
    floor_s: float = 5.0
    changing_s: float = 1.0
    progress_s: float = 15.0


@dataclass(frozen=True, slots=True)
class AdmissionGate:
    """The reason why no new job may start: status, reason and message of the condition CRDOutdated."""

    status: Literal["True", "Unknown"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Obstacle:
    """The reason why a certificate is not issued yet: reason and message of the condition CertificateIssued."""

    reason: str
    message: str


@dataclass(frozen=True)
class ReconcileInput:
    """The inputs of one reconciliation.

    pods: the job's own pods, and ended ones that were deleted after their end was seen.
    reports: by pod uid, fetched after the pods were listed.
    lost_node: a node with overdue heartbeats of its members, on which no pod's kernel answers; empty for none.
    refusals: by pod name, the API server's message about a create that certainly did not happen.
    anchors_in_use: for a job that is being deleted, the keys of anchors from which other jobs restore.
    terminating: the namespace is being deleted, so nothing can be created in it.
    leader_unresponsive: the leader did not answer in the previous reconciliation.
    watched_s: seconds for which this operator has watched the job without a gap.
    key_digest: the name of the next handshake key. key_lost: the Secret of the present key does not exist,
        or has the certificate of another operator.
    encryption: that of jobs without `spec.security.encryption`.
    next_ca: the certificate (PEM) of the CA with the next key, for a job that is encrypted or may become so.
    issuer: that of the CAs of jobs that state none; None: these sign themselves.
    next_request: the certificate signing request (PEM) of the next CA, for a job with an issuer that may start.
    certificate_request: the CertificateRequest that is due, as it was read; None if it does not exist.
    request_obstacle: the API server's answer, if it refused the last request for the CertificateRequest.
    identity_digest: that of the operator's certificate, if it is known and the job needs it.
    source_jobs: the jobs among which a new job may choose the anchor to start from.
    queue: the job's state in its Kueue queue; None without a queue.
    ending: uids of trainers that most likely ended; the kubelet's news of their end is awaited.
    restart_rules: the cluster restarts containers in their pods by rules. Queried for a job that may start.
    pod_groups: the cluster has PodGroups. Queried for a job that may start.
    warnings: by pod uid, the newest Warning event of a pod that does not start.
    publishers: the job's publishers, which are not among `pods`. publisher_report: that of the newest one.
    recorders: the pods that record the job at its end, which are not among `pods` either.
    recording: the job as it was read, and its events, for its record; None: it is not recorded.
    """

    job: Job
    pods: tuple[PodView, ...]
    reports: Mapping[str, Report]
    now: float
    lost_node: str = ""
    refusals: Mapping[str, str] = field(default_factory=dict)
    admission_gate: AdmissionGate | None = None
    anchors_in_use: tuple[str, ...] = ()
    terminating: bool = False
    leader_unresponsive: bool = False
    watched_s: float = 0.0
    key_digest: str = ""
    key_lost: bool = False
    encryption: Encryption = "None"
    next_ca: str = ""
    issuer: IssuerRef | None = None
    next_request: str = ""
    certificate_request: Manifest | None = None
    request_obstacle: Obstacle | None = None
    identity_digest: str = ""
    restriction: Restriction | None = None
    source_jobs: tuple[JobView, ...] = ()
    queue: Queue | None = None
    ending: frozenset[str] = frozenset()
    restart_rules: bool = False
    pod_groups: bool = False
    warnings: Mapping[str, PodWarning] = field(default_factory=dict)
    publishers: tuple[PodView, ...] = ()
    publisher_report: PublisherReport | None = None
    recorders: tuple[PodView, ...] = ()
    recording: Recording | None = None
    timing: Timing = Timing()

    @property
    def before(self) -> Status:
        """The status as it was read."""
        return self.job.status

    @cached_property
    def pods_by_uid(self) -> Mapping[str, PodView]:
        """The pods by their uid."""
        return {pod.uid: pod for pod in self.pods}

    def report_of(self, member: Member) -> Report | None:
        """Return the report of the member's newest incarnation, if it answered."""
        report = self.reports.get(member.uid) if member.uid else None
        if report is None or report.job_uid != self.job.id.uid:
            return None
        return report if (report.index, report.incarnation) == (member.index, member.incarnation) else None

    @property
    def leader_report(self) -> TrainerReport | None:
        """The leader's report, if it answered."""
        leader = leader_of(self.before)
        report = self.report_of(leader) if leader else None
        return report if isinstance(report, TrainerReport) else None


@dataclass(frozen=True, slots=True)
class NoPod:
    """No pod was requested yet."""


@dataclass(frozen=True, slots=True)
class NeverSeen:
    """Requested, never seen. With a `refusal` its create certainly did not happen; else it may have."""

    refusal: str


@dataclass(frozen=True, slots=True)
class Active:
    """It starts or runs. `trouble`: the reason why it does not run yet."""

    pod: PodView
    trouble: Trouble | None


@dataclass(frozen=True, slots=True)
class Terminating:
    """It is being deleted, and its process may flush until `until`."""

    pod: PodView
    failure: Failure
    until: float


@dataclass(frozen=True, slots=True)
class Done:
    """A trainer that trained to the end. `message`: its termination message."""

    message: str


@dataclass(frozen=True, slots=True)
class Lost:
    """It has ended, or cannot be reached. `pod` is None if it no longer exists."""

    pod: PodView | None
    failure: Failure


Fact = NoPod | NeverSeen | Active | Terminating | Done | Lost


@dataclass(frozen=True, slots=True)
class PodDelete:
    """Delete the pod of this uid, with its own grace period or `grace_s`."""

    name: str
    uid: str
    reason: str
    grace_s: int | None = None


@dataclass(frozen=True, slots=True)
class ApplyWorkload:
    """The job enters its queue, or becomes the owner of the Workload by which it stands in the queue already."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class DeleteWorkload:
    """The job leaves its queue, with all quota."""

    name: str


@dataclass(frozen=True, slots=True)
class WorkloadStatus:
    """Change these fields of the Workload's status, if it is unchanged since it was read."""

    read: Manifest
    status: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CreateRequest:
    """Create the CertificateRequest."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class DeleteRequest:
    """Delete the CertificateRequest of that name."""

    name: str


RequestChange = CreateRequest | DeleteRequest
WorkloadChange = ApplyWorkload | DeleteWorkload | WorkloadStatus


@dataclass(frozen=True, slots=True)
class Outcome:
    """The effects of one reconciliation, in the order of execution: status first, events last.

    needs_prerequisites: the objects that the pods need must exist; they are deleted otherwise.
    release: remove the finalizer of a job that is being deleted, last of all.
    stalled: training stands still, and the job is about to recover.
    renewals: pods that get the renewed certificate of the job's CA. Each pass may do a part of them.
    requests: changes of CertificateRequests.
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
    renewals: tuple[PodPatch, ...] = ()
    requests: tuple[RequestChange, ...] = ()


@dataclass(frozen=True, slots=True)
class ReconcileState:
    """The state that each phase takes and returns, changed.

    status: the status so far. `before` is the status as it was read.
    facts: one per member, by its name.
    deletes: the pods to delete; None: those of earlier incarnations.
    """

    observed: ReconcileInput
    status: Status
    facts: Mapping[str, Fact] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    deletes: tuple[PodDelete, ...] | None = None

    @property
    def before(self) -> Status:
        """The status as it was read."""
        return self.observed.before

    @property
    def spec(self) -> CPRJobSpec:
        """The job's spec."""
        return self.observed.job.spec

    @property
    def now(self) -> float:
        """The time of the reconciliation, in seconds since the epoch."""
        return self.observed.now

    @property
    def leader_report(self) -> TrainerReport | None:
        """The leader's report, if it answered."""
        return self.observed.leader_report

    @property
    def lost(self) -> tuple[tuple[Shard | Trainer, Failure], ...]:
        """The lost members with their failures."""
        facts = ((member, self.facts.get(member.name)) for member in self.status.members)
        return tuple((member, fact.failure) for member, fact in facts if isinstance(fact, Lost))

    def report_of(self, member: Member) -> Report | None:
        """Return the report of the member's newest incarnation, if it answered."""
        return self.observed.report_of(member)

    def to(self, status: Status, *events: Event) -> ReconcileState:
        """Return the state with this status and with these events appended."""
        return replace(self, status=status, events=self.events + events)
