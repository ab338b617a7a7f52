"""`status` of a CPRJob: everything the operator remembers. It keeps nothing anywhere else.

Written once per pass, under the `resourceVersion` that the pass read. Times are seconds since the epoch here and
RFC 3339 in JSON. Every field has a value before the job starts, so `Status()` is a new job's status.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from cpr_contract.roster import AnchorRef
from cpr_contract.roster import Counters as ContractCounters
from cpr_operator.api.accounts import Budget, Counted, Ledger, Overhead, Plan, Policy
from cpr_operator.api.members import Dense, Member, Predecessor, Role, Shard, ShardPhase, Trainer, TrainerPhase
from cpr_operator.api.model import (
    MAX_ANCHORS,
    MAX_FAILURES,
    MAX_FORKS,
    MAX_RESTARTS,
    MAX_SHARDS,
    MAX_TRAINERS,
    Count,
    FigureName,
    Key,
    Model,
    Name,
    Positive,
    Seconds,
    Sentence,
    Timestamp,
    Word,
)

#: All parts of a status can be had from here.
__all__ = [
    "MAX_ANCHORS",
    "MAX_FAILURES",
    "MAX_FORKS",
    "MAX_RESTARTS",
    "MAX_SHARDS",
    "MAX_TRAINERS",
    "TERMINAL_PHASES",
    "Anchor",
    "Budget",
    "Condition",
    "ConditionType",
    "Counted",
    "Counters",
    "Dense",
    "FailureRecord",
    "Fork",
    "Ledger",
    "Member",
    "Overhead",
    "Phase",
    "Plan",
    "Policy",
    "Predecessor",
    "Progress",
    "Recovery",
    "Role",
    "Runtime",
    "Shard",
    "ShardPhase",
    "Shown",
    "Status",
    "Trainer",
    "TrainerPhase",
]

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
    "Suspended",
    "PodsReady",
    "Recovering",
    "ReportsAvailable",
    "BudgetAtRisk",
    "BudgetExhausted",
    "SnapshotsDegraded",
    "DataOutdated",
    "PrecisionEmulated",
    "CRDOutdated",
    "Complete",
    "Failed",
]


class Condition(Model):
    """A metav1.Condition."""

    type: ConditionType
    """What the condition is about."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: Annotated[str, Field(max_length=128, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")]
    """Why, in one CamelCase word."""
    message: Sentence = ""
    """Why, and what to do about it, in a sentence."""
    last_transition_time: Timestamp
    """When `status` last changed."""
    observed_generation: Count = 0
    """The metadata.generation that the condition was computed from."""


class Runtime(Model):
    """What the job was started with. Every replaced pod uses it until the job is suspended and resumed."""

    image: Annotated[str, Field(max_length=512)]
    """The trainer image."""
    contract_version: Positive
    """The contract version that the operator speaks to this job's pods."""
    template_hash: Annotated[str, Field(max_length=64)]
    """A hash of both pod templates and of the operator's own required fields."""
    key_digest: Annotated[str, Field(max_length=64)] = ""
    """Which handshake key the pods have: the end of its Secret's name. Empty for jobs that version 0.1.0 started."""
    job_spec: Annotated[str, Field(max_length=65536)]
    """The contract's JobSpec, as JSON: exactly what the pods read."""


class Counters(Model):
    """The three counters of every roster, frame and manifest; all are 0 before the job starts."""

    generation: Count = 0
    """Rises at each rollback."""
    group: Count = 0
    """Rises whenever the set of trainers changes."""
    roster: Count = 0
    """Rises at any change."""

    def to_contract(self) -> ContractCounters:
        """The counters as pods read them."""
        return ContractCounters(roster=self.roster, group=self.group, generation=self.generation)


class Anchor(Model):
    """A committed anchor: a state of the whole job that can be restored."""

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
        """An anchor as a pod reported it."""
        return cls(key=ref.key, digest=ref.digest, generation=ref.generation, step=ref.step, samples=ref.samples)

    def to_contract(self) -> AnchorRef:
        """The anchor as pods read it."""
        return AnchorRef(
            key=self.key, digest=self.digest, generation=self.generation, step=self.step, samples=self.samples
        )


class Fork(Model):
    """Where a generation started."""

    generation: Count
    """The generation."""
    anchor: Anchor | None = None
    """The anchor it started from; absent: step 0."""


class Progress(Model):
    """How far training is: the leader's last report."""

    step: Count = 0
    """Complete steps."""
    samples: Count = 0
    """Complete samples."""
    total_samples: Count = 0
    """Samples in all; 0 until the data is read."""
    percent: Annotated[int, Field(ge=0, le=100)] = 0
    """samples / totalSamples in percent, rounded down."""
    samples_per_second: Seconds | None = None
    """Training speed over the last seconds."""
    loss: float | None = None
    """Training loss, smoothed."""
    auc: float | None = None
    """Area under the ROC curve, each sample scored before it is trained; the first 20 % are left out."""
    logloss: float | None = None
    """Log loss over the same samples."""
    metrics: Annotated[dict[FigureName, float], Field(max_length=32)] = Field(default={})
    """Other figures over the same samples by name: LABEL.auc and LABEL.logloss where there are several labels, and the
    network's own."""
    eta_seconds: Seconds | None = None
    """Expected time to the end at the present speed."""
    degraded_samples: Count = 0
    """Samples trained while a shard was away, with onShardLoss Degrade; those that a rollback undid included."""
    replayed_samples: Count = 0
    """Samples that trainers pushed again to replaced shards, by shard."""
    updated: Timestamp | None = None
    """When the report was received."""


class Shown(Model):
    """Figures for `kubectl get`, rounded and with units. Programs read the fields that they are made from."""

    progress: Word = ""
    """progress.percent, as 42%."""
    interval: Word = ""
    """plan.intervalSeconds, as 1.5 min."""
    spent: Word = ""
    """budget.spent to four digits, rounded up."""
    limit: Word = ""
    """budget.limit likewise."""
    auc: Word = ""
    """progress.auc, as 0.8586."""


class Recovery(Model):
    """The recovery under way."""

    kind: Word
    """ReplaceShards, ReplaceTrainers, or RollBack."""
    since: Timestamp
    """When it began."""
    reason: Sentence = ""
    """Why it was chosen."""
    lost_shards: Annotated[tuple[Count, ...], Field(max_length=MAX_SHARDS)] = ()
    """Shards whose state was lost: one failure of so many shards, however many pods died meanwhile."""
    load_seconds: Seconds = 0
    """The longest that a member loaded a save so far."""
    degraded_before: Count = 0
    """progress.degradedSamples when it began."""
    waiting_for: Annotated[tuple[Word, ...], Field(max_length=32)] = ()
    """Members that are not back yet, as shard/3."""


class FailureRecord(Model):
    """One failure, for people."""

    time: Timestamp
    """When the operator saw it."""
    role: Role
    """shard or trainer."""
    index: Count
    """The member's number."""
    incarnation: Count
    """The incarnation that failed: with role and index, what counts a failure once."""
    pod: Name = ""
    """The pod's name."""
    node: Name = ""
    """The node it ran on."""
    kind: Word
    """What kind of failure, from a closed list: Disruption, OOMKilled, Vanished, Hung, ..."""
    reason: Word = ""
    """The reason that Kubernetes or the process gave."""
    message: Sentence = ""
    """What happened, in a sentence."""
    exit_code: int | None = None
    """The process' exit code, if it is known."""
    counted: bool = False
    """Whether it counts towards the restart limit: the first failure of an incident does."""
    lost_samples: Count | None = None
    """Samples lost on this shard (or on every shard, for trainers); absent until known."""
    replayed_samples: Count = 0
    """Samples that trainers pushed again to this shard, and that are not lost so; each on the trainer that did."""
    replayed_in_order: bool = True
    """Whether the shard took them in the order in which its predecessor had."""
    lost_row_updates: Count | None = None
    """Updates of this shard's rows that were lost; absent until known, and for trainers, which hold no rows."""
    lost_row_updates_exact: bool = True
    """Whether that is the number; else it is at most so many."""
    action: Word = ""
    """What the operator did: ReplaceShards, ReplaceTrainers, RollBack, or Fail."""
    recovery_seconds: Seconds | None = None
    """From the failure seen to training again; absent until then."""


class Status(Model):
    """What the operator knows of a job: written by the operator alone."""

    phase: Phase = "Pending"
    """A one-word summary, for people; programs read the conditions."""
    observed_generation: Count = 0
    """The metadata.generation that this status was computed from."""
    conditions: Annotated[
        tuple[Condition, ...],
        Field(
            max_length=16,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
    ] = ()
    """The job's conditions, one of a type."""
    start_time: Timestamp | None = None
    """When the first pods were created; from then on most of the spec is frozen."""
    completion_time: Timestamp | None = None
    """When the job succeeded or failed."""
    suspending_since: Timestamp | None = None
    """When suspending began; absent while the job is not being suspended."""
    resume_at: Timestamp | None = None
    """When a resume that took longer than startupDeadlineSeconds is tried again; absent otherwise."""
    deleting_since: Timestamp | None = None
    """When the deletion of a job with its saves began; absent while it is not being deleted."""
    runtime: Runtime | None = None
    """What the job was started with."""
    counters: Counters = Counters()
    """The counters that rosters carry."""
    forks: Annotated[tuple[Fork, ...], Field(max_length=MAX_FORKS)] = ()
    """Where the generations started, oldest first."""
    anchors: Annotated[tuple[Anchor, ...], Field(max_length=MAX_ANCHORS)] = ()
    """Anchors that can be restored, oldest first."""
    result: Anchor | None = None
    """The final anchor of a job that succeeded: the model."""
    plan: Plan | None = None
    """The plan in force."""
    budget: Budget | None = None
    """The accuracy budget, for people."""
    ledger: Ledger = Ledger()
    """The account of lost samples."""
    policy: Policy = Policy()
    """What the job has learnt about its failures and costs."""
    progress: Progress = Progress()
    """How far training is."""
    shown: Shown = Shown()
    """Figures for people."""
    leader: Count | None = None
    """The trainer that leads."""
    shards: Annotated[tuple[Shard, ...], Field(max_length=MAX_SHARDS)] = ()
    """The shards, by index."""
    trainers: Annotated[tuple[Trainer, ...], Field(max_length=MAX_TRAINERS)] = ()
    """The trainers, by index."""
    dense: Dense = Dense()
    """The dense network's saves."""
    meeting: bool = False
    """Whether all trainers are asked to come to one step, where their number changes in a shadow mode. Of a job that is
    suspended: whether they had met, at the newest anchor."""
    recovery: Recovery | None = None
    """The recovery under way, if any."""
    failures: Annotated[tuple[FailureRecord, ...], Field(max_length=MAX_FAILURES)] = ()
    """The last failures, newest last."""
    restart_times: Annotated[tuple[Timestamp, ...], Field(max_length=MAX_RESTARTS)] = ()
    """When incidents that count towards the restart limit began, within its window."""
    restarts: Count = 0
    """Pods replaced so far, for whatever reason."""
    overhead: Overhead = Overhead()
    """What fault tolerance has cost."""

    @property
    def members(self) -> tuple[Shard | Trainer, ...]:
        """All shards, then all trainers."""
        return (*self.shards, *self.trainers)

    @property
    def lost_row_updates(self) -> int | None:
        """Row updates that are lost, on all shards; None while one has yet to tell."""
        told = [shard.lost_row_updates for shard in self.shards]
        return None if None in told else sum(filter(None, told))

    @property
    def lost_row_updates_exact(self) -> bool:
        """Whether that is the number; else it is at most so many."""
        return all(shard.lost_row_updates_exact for shard in self.shards)
