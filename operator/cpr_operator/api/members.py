"""What `status` holds of each member of the job: an entry per index, about its newest incarnation."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from cpr_operator.api.accounts import Ranges
from cpr_operator.api.model import Count, Model, Name, Timestamp, Word

#: A member without a running process is Pending; Lost says that its end is known and its successor not decided.
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
    """What shards and trainers have in common: one entry per index, about its newest incarnation."""

    role: ClassVar[Role]

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
    avoid: Name = ""
    """The node that its pod keeps off, because the incarnation before fell silent there; empty: any will do."""
    roster: Count = 0
    """The roster number at which what this member is told last changed: an older annotation is written anew."""

    @property
    def name(self) -> str:
        """How reports and messages call it, as shard/3."""
        return f"{self.role}/{self.index}"


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

    role: ClassVar[Role] = "shard"

    state: ShardPhase = "Pending"
    """Where it stands."""
    floor_samples: Count = 0
    """The oldest save, in samples, that it may serve after a restore."""
    saved_samples: Count = 0
    """Samples of its last committed save; 0: none."""
    reserved: Ranges = ()
    """Samples set aside in the budget for its recovery, until it has told what it lost."""
    owes_from: Count | None = None
    """The oldest floor since it told last what it lost: from there on it may miss samples; absent once it has told."""
    allowance: Count = 0
    """Up to this sample training may go on while it is away; 0: it waits. Its reservation covers that."""
    lost_row_updates: Count | None = None
    """Updates of its rows that are lost, of all since the job began; absent until it has told, and after a rollback."""
    lost_row_updates_exact: bool = True
    """Whether that is the number; else it is at most so many."""
    may_restore: bool = True
    """False while its predecessor may still commit a flush."""
    predecessor: Predecessor | None = None
    """The pod that may still commit a flush."""


class Trainer(Member):
    """One trainer."""

    role: ClassVar[Role] = "trainer"

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
