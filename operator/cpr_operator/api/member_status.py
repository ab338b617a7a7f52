"""The entries of `status` for members, one per index, for their failures, and for the recovery under way."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from cpr_contract.limits import MAX_SHARDS
from cpr_operator.api.base import Count, Model, Name, Positive, Seconds, Sentence, Timestamp, Word
from cpr_operator.api.cost_status import Ranges

#: A member without a running process is Pending. Lost means that its process has ended and its
#: replacement is not yet decided.
ShardPhase = Literal["Pending", "Starting", "Restoring", "BelowFloor", "Ready", "Flushing", "Lost"]
TrainerPhase = Literal[
    "Pending",
    "Starting",
    "Loading",
    "Joining",
    "BelowFloor",
    "Training",
    "Meeting",
    "Paused",
    "Finishing",
    "Finished",
    "Flushing",
    "Lost",
]
Role = Literal["shard", "trainer"]


class Member(Model):
    """The fields that shards and trainers share: one entry per index, for its newest incarnation."""

    role: ClassVar[Role]

    index: Count
    """The member's number, from 0."""
    incarnation: Count = 0
    """The number of its process, counted from 1; 0 before the first. A number is never used for two pods."""
    uid: Word = ""
    """The uid of the incarnation's pod; empty until the pod is seen."""
    pod: Name = ""
    """The pod's name."""
    node: Name = ""
    """The pod's node; empty until it is scheduled."""
    host: Name = ""
    """The pod's address; empty until it has one."""
    port_base: Annotated[int, Field(ge=0, le=65535)] = 0
    """The first of the pod's consecutive ports."""
    started_at: Timestamp | None = None
    """When the operator decided to start this incarnation."""
    lost_at: Timestamp | None = None
    """When the previous incarnation was seen to be lost; absent once this one is at work."""
    processes: Annotated[Count, Field(alias="lives")] = 0
    """The number of processes that this incarnation has had, as far as it is known; 0 during the first one."""
    restarts: Count = 0
    """The number of restarts of its pod's container, as far as they are recorded."""
    problem: Word = ""
    """The reason of the problem that it reports."""
    avoid: Name = ""
    """The node that its pod avoids, because the previous incarnation became silent there; empty for none."""
    roster: Count = 0
    """The roster number at which this member's roster last changed. An older annotation is rewritten."""

    @property
    def name(self) -> str:
        """Return its name in reports and messages, as shard/3."""
        return f"{self.role}/{self.index}"


class Predecessor(Model):
    """A shard's previous pod, while it may still commit a flush."""

    pod: Name
    """The pod's name."""
    uid: Word
    """The pod's uid."""
    until: Timestamp
    """When its grace period ends, by the clock of the operator that recorded it."""


class Shard(Member):
    """One embedding shard."""

    role: ClassVar[Role] = "shard"

    state: ShardPhase = "Pending"
    """Its state."""
    floor_samples: Count = 0
    """The fewest samples that a save must hold for the shard to restore it."""
    saved_samples: Count = 0
    """Samples in its last committed save; 0 if there is none."""
    reserved: Ranges = ()
    """Samples reserved in the budget for its recovery, until it reports its losses."""
    pending_from: Annotated[Count | None, Field(alias="owesFrom")] = None
    """The lowest floor since its last report of losses. It may miss samples from there on. Absent once it reports.
    After a flush it is the number of all samples, because none is missing."""
    allowance: Count = 0
    """The sample up to which training may continue without this shard, covered by its reservation; 0 if training
    waits."""
    lost_row_updates: Count | None = None
    """Updates of its rows lost since the job began; absent until it reports them, and after a rollback."""
    lost_row_updates_exact: bool = True
    """True if lostRowUpdates is exact; otherwise it is an upper bound."""
    may_restore: bool = True
    """False while its previous pod may still commit a flush."""
    predecessor: Predecessor | None = None
    """The previous pod, while it may still commit a flush."""


#: Lost: its pod is gone or has ended. Another one is created after a pause.
SparePhase = Literal["Pending", "Starting", "Ready", "Lost"]


class Spare(Model):
    """A pod that waits to take the place of a lost shard."""

    number: Positive
    """The number of the spare, counted from 1. A number is never used for two pods."""
    pod: Name
    """The pod's name."""
    uid: Word = ""
    """The pod's uid; empty until the pod is seen."""
    node: Name = ""
    """The pod's node; empty until it is scheduled."""
    state: SparePhase = "Pending"
    """Its state. Ready: it can be promoted at once."""
    started_at: Timestamp
    """When the operator decided to create it."""


class Trainer(Member):
    """One trainer."""

    role: ClassVar[Role] = "trainer"

    state: TrainerPhase = "Pending"
    """Its state."""


class Dense(Model):
    """The dense network. Every trainer has a copy of it."""

    saved_samples: Count = 0
    """Samples in its last committed save; 0 if there is none."""
    floor_samples: Count = 0
    """The fewest samples that a dense save must hold to be restored when no trainer survived."""
    reserved: Ranges = ()
    """Samples reserved on every shard, until a trainer reports the sample from which it continues."""
    pending_from: Annotated[Count | None, Field(alias="owesFrom")] = None
    """The first sample that it may miss since it was restored. Absent once a trainer reports the sample from which it
    continues."""


class Recovery(Model):
    """The recovery under way."""

    kind: Word
    """ReplaceShards, ReplaceTrainers, or RollBack."""
    since: Timestamp
    """When it began."""
    reason: Sentence = ""
    """Why it was chosen."""
    lost_shards: Annotated[tuple[Count, ...], Field(max_length=MAX_SHARDS)] = ()
    """Shards that lost their state. They count as one failure, with any number of pods that died meanwhile."""
    load_seconds: Seconds = 0
    """The longest time that a member took to load a save so far."""
    degraded_before: Count = 0
    """progress.degradedSamples when it began."""
    waiting_for: Annotated[tuple[Word, ...], Field(max_length=32)] = ()
    """Members that are not back yet, such as shard/3."""


class FailureRecord(Model):
    """One failure, for people."""

    time: Timestamp
    """The time at which the operator detected it."""
    role: Role
    """shard or trainer."""
    index: Count
    """The member's number."""
    incarnation: Count
    """The incarnation that failed. With role, index and life it identifies the failure."""
    process: Annotated[Count, Field(alias="life")] = 0
    """The number of the process that ended, within the incarnation, if its pod stayed; 0 if the pod was lost."""
    tier: Word = "NewPod"
    """The kind of recovery: InPlace, by another process in the same pod, with its memory; Parity, by another pod that
    computed its rows from other shards; Spare, by a pod that waited for this; or NewPod."""
    pod: Name = ""
    """The pod's name."""
    node: Name = ""
    """The pod's node."""
    kind: Word
    """The kind of failure, from a closed list: Disruption, OOMKilled, Vanished, Hung, ..."""
    reason: Word = ""
    """The reason that Kubernetes or the process gave."""
    message: Sentence = ""
    """A sentence that describes the failure."""
    exit_code: int | None = None
    """The process's exit code, if known."""
    counted: bool = False
    """True if it counts towards the restart limit, as only the first failure of an incident does."""
    lost_samples: Count | None = None
    """Samples lost on this shard, or on every shard for a trainer; absent until known."""
    replayed_samples: Count = 0
    """Samples that trainers pushed again to this shard, each its own. They are therefore not lost."""
    replayed_in_order: bool = True
    """True if the shard applied them in the same order as its predecessor. Always true if shards update rows per step,
    because they merge the pushes of a step in the order of trainers."""
    lost_row_updates: Count | None = None
    """Lost updates of this shard's rows; absent until known, and for trainers, which hold no rows."""
    lost_row_updates_exact: bool = True
    """True if lostRowUpdates is exact; otherwise it is an upper bound."""
    action: Word = ""
    """The action: ReplaceShards, ReplaceTrainers, RollBack, Fail, or RestartInPlace, which the pod does itself."""
    recovery_seconds: Seconds | None = None
    """Time from the detection of the failure until training resumed; absent until then. In place: time from the end of
    the process until the next one served or trained, as measured in the pod; absent until it is reported."""

    @property
    def identity(self) -> tuple[Role, int, int, int]:
        """Return role, index, incarnation and process, which identify the failure."""
        return self.role, self.index, self.incarnation, self.process
