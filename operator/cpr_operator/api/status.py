"""`status` of a CPRJob: everything the operator remembers. It keeps nothing anywhere else.

Written once per pass, under the `resourceVersion` that the pass read. Times are seconds since the epoch here and
RFC 3339 in JSON. Every field has a value before the job starts, so `Status()` is a new job's status.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from cpr_contract.roster import AnchorRef
from cpr_contract.roster import Counters as ContractCounters
from cpr_operator.api.model import Count, Key, Model, Name, Portion, Positive, Seconds, Sentence, Timestamp, Word

MAX_SHARDS = 1024
MAX_TRAINERS = 256
MAX_FAILURES = 20
MAX_FORKS = 64
MAX_ANCHORS = 128
MAX_RESTARTS = 1000
MAX_RANGES = 4096

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
    "CRDOutdated",
    "Complete",
    "Failed",
]
#: A member without a running process is Pending; Lost says that its end is known and its successor not decided.
ShardPhase = Literal["Pending", "Starting", "Restoring", "BelowFloor", "Ready", "Flushing", "Lost"]
TrainerPhase = Literal[
    "Pending",
    "Starting",
    "Loading",
    "Joining",
    "BelowFloor",
    "Training",
    "Paused",
    "Finishing",
    "Finished",
    "Flushing",
    "Lost",
]
Role = Literal["shard", "trainer"]


class Condition(Model):
    """A metav1.Condition."""

    type: ConditionType
    """What the condition is about."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: Annotated[str, Field(max_length=128, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")]
    """Why, in one CamelCase word."""
    message: Annotated[str, Field(max_length=4096)] = ""
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
    job_spec: Annotated[str, Field(max_length=65536)]
    """The contract's JobSpec, as JSON: exactly what the pods read."""


#: Disjoint, sorted ranges [first, end) of samples.
Ranges = Annotated[tuple[tuple[Count, Count], ...], Field(max_length=MAX_RANGES)]


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


class Plan(Model):
    """The plan that keeps the accuracy budget at the least cost, and why."""

    mode: Literal["Partial", "Full"]
    """Partial: a lost shard goes back alone. Full: any loss of samples rolls the whole job back."""
    interval_seconds: Seconds
    """Planned training time between two cuts."""
    expected_lost_samples: Seconds = 0
    """Samples (counted as a portion of all shards) expected to be lost by the end of the job."""
    expected_overhead: Seconds = 0
    """Expected time for saves and recoveries, as a portion of the useful training time."""
    inputs: Annotated[dict[Word, float], Field(max_length=32)] = Field(default={})
    """The figures that the plan was computed from."""
    reason: Sentence = ""
    """Why this plan."""


class Budget(Model):
    """The accuracy budget as portions of all samples, for people. The account itself is `ledger`."""

    limit: Portion
    """The portion of samples that may be lost."""
    spent: Portion = 0
    """The portion that is lost."""
    reserved: Portion = 0
    """The portion set aside for recoveries under way."""
    remaining: Portion
    """limit - spent - reserved."""
    rollbacks: Count = 0
    """How often the whole job went back to an anchor."""


class Ledger(Model):
    """The account of lost samples, in integers."""

    total_samples: Count = 0
    """Samples that the job trains in all; 0 until the data is read."""
    limit_sample_shards: Count = 0
    """The budget: samples times shards that may be lost, rounded down."""
    ranges: Annotated[
        tuple[Annotated[tuple[tuple[Count, Count], ...], Field(max_length=MAX_RANGES)], ...],
        Field(max_length=MAX_SHARDS),
    ] = ()
    """For each shard the lost samples as disjoint, sorted ranges [first, end)."""


class Policy(Model):
    """Measured costs; absent until measured, then the plan uses them instead of its stated guesses."""

    save_stall_seconds: Seconds | None = None
    """Training time lost to one cut."""
    commit_seconds: Seconds | None = None
    """From a cut to its committed anchor."""
    load_seconds: Seconds | None = None
    """From the start of a replaced shard's process to its being ready."""
    reschedule_seconds: Seconds | None = None
    """From the loss of a pod to the start of its successor's process."""
    samples_per_second: Seconds | None = None
    """Training speed."""


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
    eta_seconds: Seconds | None = None
    """Expected time to the end at the present speed."""
    updated: Timestamp | None = None
    """When the report was received."""


class Member(Model):
    """What shards and trainers have in common: one entry per index, about its newest incarnation."""

    index: Count
    """The member's number, from 0."""
    incarnation: Count = 0
    """The number of its process start; 0: none yet. A number whose pod may have been created is not used again."""
    uid: Word = ""
    """The uid of the incarnation's pod; empty until the pod was seen."""
    pod: Name = ""
    """The pod's name."""
    node: Name = ""
    """The node it runs on; empty until scheduled."""
    host: Name = ""
    """The pod's address; empty until it has one."""
    port_base: Annotated[int, Field(ge=0, le=65535)] = 0
    """The first of the pod's consecutive ports."""
    started_at: Timestamp | None = None
    """When this incarnation was decided."""
    lost_at: Timestamp | None = None
    """When the incarnation before it was seen lost; absent once this one works."""
    problem: Word = ""
    """The reason of the problem that it reports."""
    roster: Count = 0
    """The roster number at which what this member is told last changed: an older annotation is written anew."""


class Predecessor(Model):
    """The pod before a shard's newest one, while it may still commit a flush."""

    pod: Name
    """The pod's name."""
    uid: Word
    """The pod's uid."""
    until: Timestamp
    """When its grace is over."""


class Shard(Member):
    """One embedding shard."""

    state: ShardPhase = "Pending"
    """Where it stands."""
    floor_samples: Count = 0
    """The oldest save, in samples, that it may serve after a restore."""
    saved_samples: Count = 0
    """Samples of its last committed save; 0: none."""
    reserved: Ranges = ()
    """Samples set aside in the budget for its recovery, until it has told what it lost."""
    may_restore: bool = True
    """False while its predecessor may still commit a flush."""
    predecessor: Predecessor | None = None
    """The pod that may still commit a flush."""


class Trainer(Member):
    """One trainer."""

    state: TrainerPhase = "Pending"
    """Where it stands."""


class Dense(Model):
    """The dense network, which all trainers hold."""

    saved_samples: Count = 0
    """Samples of its last committed save; 0: none."""
    floor_samples: Count = 0
    """The oldest dense save, in samples, that may be used when no trainer survived."""
    reserved: Ranges = ()
    """Samples set aside, on every shard, while no trainer has told from where it goes on."""


class Recovery(Model):
    """The recovery under way."""

    kind: Word
    """ReplaceShards, ReplaceTrainers, or RollBack."""
    since: Timestamp
    """When it began."""
    reason: Sentence = ""
    """Why it was chosen."""
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
    message: Annotated[str, Field(max_length=1024)] = ""
    """What happened, in a sentence."""
    exit_code: int | None = None
    """The process' exit code, if it is known."""
    counted: bool = False
    """Whether it counts towards the restart limit."""
    lost_samples: Count | None = None
    """Samples lost on this shard (or on every shard, for trainers); absent until known."""
    action: Word = ""
    """What the operator did: ReplaceShards, ReplaceTrainers, RollBack, or Fail."""
    recovery_seconds: Seconds | None = None
    """From the failure seen to training again; absent until then."""


class Overhead(Model):
    """Time that fault tolerance has cost so far, by kind."""

    save_seconds: Seconds = 0
    """Training stood still for saves."""
    load_seconds: Seconds = 0
    """Training waited for saves to be loaded."""
    lost_seconds: Seconds = 0
    """Training that a rollback undid and that was done again."""
    reschedule_seconds: Seconds = 0
    """Training waited for a new process."""
    leader_save_seconds: Seconds = 0
    """The part of saveSeconds that the present leader's process has reported."""


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
    """Measured costs."""
    progress: Progress = Progress()
    """How far training is."""
    leader: Count | None = None
    """The trainer that leads."""
    shards: Annotated[tuple[Shard, ...], Field(max_length=MAX_SHARDS)] = ()
    """The shards, by index."""
    trainers: Annotated[tuple[Trainer, ...], Field(max_length=MAX_TRAINERS)] = ()
    """The trainers, by index."""
    dense: Dense = Dense()
    """The dense network's saves."""
    recovery: Recovery | None = None
    """The recovery under way, if any."""
    failures: Annotated[tuple[FailureRecord, ...], Field(max_length=MAX_FAILURES)] = ()
    """The last failures, newest last."""
    restart_times: Annotated[tuple[Timestamp, ...], Field(max_length=MAX_RESTARTS)] = ()
    """When failures that count towards the restart limit happened, within its window."""
    restarts: Count = 0
    """Pods replaced so far, for whatever reason."""
    overhead: Overhead = Overhead()
    """What fault tolerance has cost."""
