"""`status` of a CPRJob: the only persistent state of the operator about a job.

Each pass writes it at most once, under the `resourceVersion` that the pass read. Times are seconds since the epoch in
Python and RFC 3339 in JSON. Every field has a default, and `Status()` is the status of a new job. All parts of a status
can be imported from here.
"""
# mypy: implicit-reexport
# ruff: noqa: F401

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from cpr_contract.limits import (
    MAX_ANCHORS,
    MAX_COUNTED_TABLES,
    MAX_SHARDS,
    MAX_SPARES,
    MAX_TRAINERS,
)
from cpr_contract.reports import BestEvaluation
from cpr_contract.roster import AnchorRef
from cpr_contract.roster import Counters as ContractCounters
from cpr_operator.api.base import (
    MAX_RESTARTS,
    Count,
    Key,
    Model,
    Name,
    Sentence,
    Timestamp,
    Word,
)
from cpr_operator.api.cost_status import Budget, Counted, Ledger, Overhead, Plan, Policy
from cpr_operator.api.goodput_status import Goodput, LostTime
from cpr_operator.api.member_status import (
    Dense,
    FailureRecord,
    Member,
    Predecessor,
    Recovery,
    Shard,
    Spare,
    Trainer,
)
from cpr_operator.api.progress_status import DynamicTable, GroupScores, HeldOut, PinnedData, Point, Progress, Segment
from cpr_operator.api.runtime_status import IssuedCA, Runtime, SparseUpdatesMode, WorkerCount

#: The maximum lengths of lists.
MAX_FAILURES, MAX_FORKS, MAX_HISTORY = 20, 64, 100

Phase = Literal[
    "Pending",
    "Starting",
    "Running",
    "Recovering",
    "RollingBack",
    "Suspending",
    "Suspended",
    "Finishing",
    "Succeeded",
    "Failed",
]
#: Phases that a job never leaves.
TERMINAL_PHASES: frozenset[Phase] = frozenset({"Succeeded", "Failed"})

ConditionType = Literal[
    "QuotaReserved",
    "Suspended",
    "PodsReady",
    "Recovering",
    "ReportsAvailable",
    "BudgetAtRisk",
    "BudgetExhausted",
    "SnapshotsDegraded",
    "DataOutdated",
    "CaughtUp",
    "IdsSpelledTwice",
    "PrecisionEmulated",
    "SpillUnavailable",
    "ReplayMemoryShort",
    "TableTooSmall",
    "PublishingDegraded",
    "CertificateIssued",
    "CRDOutdated",
    "Complete",
    "Failed",
]


class Condition(Model):
    """A metav1.Condition."""

    type: ConditionType
    """The type of the condition."""
    status: Literal["True", "False", "Unknown"]
    """The status of the condition: True if it holds."""
    reason: Annotated[str, Field(max_length=128, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")]
    """Why, in one CamelCase word."""
    message: Sentence = ""
    """The reason and the remedy, in a sentence."""
    last_transition_time: Timestamp
    """When `status` last changed."""
    observed_generation: Count = 0
    """The metadata.generation that the condition was computed from."""


class Counters(Model):
    """The three counters of every roster, frame and manifest; all are 0 before the job starts."""

    generation: Count = 0
    """Rises at each rollback."""
    group: Count = 0
    """Rises whenever the set of trainers changes."""
    roster: Count = 0
    """Rises at every change of the roster."""

    def to_contract(self) -> ContractCounters:
        """Return the counters of the contract."""
        return ContractCounters(roster=self.roster, group=self.group, generation=self.generation)


class Anchor(Model):
    """A committed anchor: a checkpoint of the whole job."""

    key: Key
    """The dense manifest's key in the store, below bucket and prefix."""
    digest: Annotated[str, Field(max_length=64)]
    """SHA-256 (hex) of the dense manifest."""
    generation: Count
    """The generation that wrote it."""
    step: Count
    """The last step it contains."""
    samples: Count
    """Samples trained up to that step."""

    @classmethod
    def of(cls, ref: AnchorRef) -> Anchor:
        """Return the anchor that a pod reported."""
        return cls(key=ref.key, digest=ref.digest, generation=ref.generation, step=ref.step, samples=ref.samples)

    def to_contract(self) -> AnchorRef:
        """Return the anchor of the contract."""
        return AnchorRef(
            key=self.key, digest=self.digest, generation=self.generation, step=self.step, samples=self.samples
        )


class SourceJob(Model):
    """The source job: this job started from its model."""

    job: Name
    """Its name."""
    key: Key
    """The key of the anchor that was chosen."""


class BestModel(Model):
    """The best evaluation of a job with spec.evaluation.earlyStop, and the anchor of its model."""

    anchor: Anchor
    """The anchor that holds the model. It is kept."""
    value: float
    """Its score, by the metric of earlyStop."""
    since: Count
    """The number of evaluations since then."""

    @classmethod
    def of(cls, best: BestEvaluation) -> BestModel:
        """Return the best evaluation that a pod reported."""
        return cls(anchor=Anchor.of(best.anchor), value=best.value, since=best.since)


class Fork(Model):
    """The start of a generation."""

    generation: Count
    """The generation."""
    anchor: Anchor | None = None
    """The anchor it started from; absent: step 0."""


class PublishedModel(Model):
    """The newest model that the publisher has published, with spec.publish."""

    sequence: Count
    """Its number in the chain of models, which only rises."""
    anchor: Annotated[str, Field(max_length=1024)]
    """The key of its anchor."""
    step: Count
    """The step of its anchor. After a rollback it may be lower than before."""
    samples: Count
    """The samples trained as of that step."""
    time: Timestamp
    """When it was published."""


class Shown(Model):
    """Values for `kubectl get`, rounded and with units. Programs should read the original fields."""

    progress: Word = ""
    """progress.percent, such as 42%. While data that arrives has no end: data.lagSamples, as lag 1000, or caught up."""
    interval: Word = ""
    """plan.intervalSeconds, such as 1.5 min."""
    spent: Word = ""
    """budget.spent to four digits, rounded up."""
    limit: Word = ""
    """budget.limit to four digits, rounded up."""
    auc: Word = ""
    """progress.auc, such as 0.8586."""
    speed: Word = ""
    """progress.samplesPerSecond, such as 12300/s."""
    eta: Word = ""
    """progress.etaSeconds, such as 12.5 min."""
    goodput: Word = ""
    """goodput.ratio, such as 97.1%."""


class Scale(Model):
    """The trainers in the subresource scale."""

    replicas: Count = 0
    """The number of trainers that the job has now."""
    selector: Annotated[str, Field(max_length=1024)] = ""
    """The labels of their pods."""


class Status(Model):
    """The state of a job. Only the operator writes it."""

    phase: Phase = "Pending"
    """A one-word summary, for people. Programs should read the conditions."""
    observed_generation: Count = 0
    """The metadata.generation that this status was computed from."""
    conditions: Annotated[
        tuple[Condition, ...],
        Field(
            max_length=32,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
    ] = ()
    """The job's conditions, at most one of each type."""
    start_time: Timestamp | None = None
    """When the first pods were created. From then on, most of the spec cannot be changed."""
    completion_time: Timestamp | None = None
    """When the job succeeded or failed."""
    suspending_since: Timestamp | None = None
    """When suspending began; absent while the job is not being suspended."""
    resume_at: Timestamp | None = None
    """When a job resumes whose pods went after startupDeadlineSeconds or recovery.deadlineSeconds; absent otherwise."""
    deleting_since: Timestamp | None = None
    """When the deletion of a job with its saves began; absent while it is not being deleted."""
    runtime: Runtime | None = None
    """The settings that the job was started with."""
    certificate_request: Name = ""
    """The CertificateRequest that waits for its issuer; empty if none does."""
    source_job: Annotated[SourceJob | None, Field(alias="ancestor")] = None
    """The job that spec.restoreFrom.job or latestOf selected; absent if this job started from initial values."""
    counters: Counters = Counters()
    """The counters that rosters carry."""
    forks: Annotated[tuple[Fork, ...], Field(max_length=MAX_FORKS)] = ()
    """The starts of the generations, oldest first."""
    anchors: Annotated[tuple[Anchor, ...], Field(max_length=MAX_ANCHORS)] = ()
    """The anchors that can be restored, oldest first."""
    result: Anchor | None = None
    """The final anchor of a job that succeeded, or with spec.evaluation.earlyStop the best one. It holds the model."""
    best: BestModel | None = None
    """The best evaluation so far, with spec.evaluation.earlyStop."""
    published: PublishedModel | None = None
    """The newest published model, with spec.publish."""
    publisher_failures: Count = 0
    """Publishers that have failed one after the other since a model was published. Each doubles the pause before the
    next one, up to five minutes."""
    plan: Plan | None = None
    """The plan in force."""
    budget: Budget | None = None
    """The accuracy budget, for people."""
    ledger: Ledger = Ledger()
    """The account of lost samples."""
    policy: Policy = Policy()
    """Estimates of the job's failures and costs."""
    progress: Progress = Progress()
    """The progress of training."""
    data: PinnedData | None = None
    """Data that arrives, with spec.data.follow; absent before the first pin."""
    tables: Annotated[tuple[DynamicTable, ...], Field(max_length=MAX_COUNTED_TABLES)] = ()
    """The tables with the ids Dynamic, in the order of the model, the first 32. While a job trains they are updated
    about once a minute. admitted, evicted, expired, dropped and full count since the present processes of the shards
    began, including steps that are repeated."""
    history: Annotated[tuple[Point, ...], Field(max_length=MAX_HISTORY)] = ()
    """The history of training, oldest first, in one line for about every 80th part of the job: time (seconds since the
    epoch), samples, samples per second, loss, log loss, AUC, calibration, portion lost, samples in the newest anchor,
    planned interval in seconds, mode, shards, trainers, generation. They are separated by commas, and empty if not
    known. `cprjob report --html` draws them."""
    shown: Shown = Shown()
    """Values for people."""
    scale: Scale | None = None
    """The present number of trainers, for `kubectl scale` and autoscalers."""
    leader: Count | None = None
    """The index of the trainer that leads."""
    shards: Annotated[tuple[Shard, ...], Field(max_length=MAX_SHARDS)] = ()
    """The shards, by index."""
    trainers: Annotated[tuple[Trainer, ...], Field(max_length=MAX_TRAINERS)] = ()
    """The trainers, by index."""
    spares: Annotated[tuple[Spare, ...], Field(max_length=MAX_SPARES)] = ()
    """The pods that wait to take the place of a lost shard, oldest first."""
    last_spare: Count = 0
    """The number of the newest spare that the job ever had."""
    dense: Dense = Dense()
    """The saves of the dense network."""
    aligning: Annotated[bool, Field(alias="meeting")] = False
    """True while all trainers are to stop at a common step, to change their number in a shadow mode. In a suspended
    job: True if they had reached it at the newest anchor."""
    recovery: Recovery | None = None
    """The recovery under way, if any."""
    failures: Annotated[tuple[FailureRecord, ...], Field(max_length=MAX_FAILURES)] = ()
    """The last failures, newest last."""
    restart_times: Annotated[tuple[Timestamp, ...], Field(max_length=MAX_RESTARTS)] = ()
    """The start times of the incidents within the window of the restart limit that count towards it."""
    restarts: Count = 0
    """Number of pods replaced so far, for any reason."""
    overhead: Overhead = Overhead()
    """The cost of fault tolerance so far."""
    goodput: Goodput | None = None
    """The wall time of the job and its parts: productive time, and the time lost by each cause."""

    @property
    def members(self) -> tuple[Shard | Trainer, ...]:
        """Return all shards, then all trainers."""
        return (*self.shards, *self.trainers)

    @property
    def has_open_data(self) -> bool:
        """Return whether more data may arrive after the pinned data."""
        return self.data is not None and not self.data.ended

    @property
    def known_samples(self) -> int:
        """Return the sample number after the last known one; 0 until the data is read."""
        return self.ledger.total_samples if self.data is None else self.data.pinned_samples

    @property
    def lost_row_updates(self) -> int | None:
        """Return the lost row updates of all shards; None until every shard has reported."""
        reported = [shard.lost_row_updates for shard in self.shards]
        return None if None in reported else sum(filter(None, reported))

    @property
    def lost_row_updates_exact(self) -> bool:
        """Return whether `lost_row_updates` is exact; otherwise it is an upper bound."""
        return all(shard.lost_row_updates_exact for shard in self.shards)
