"""`status.recovery` and `status.failures`: the recovery under way, and earlier failures."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from cpr_operator.api.base import MAX_SHARDS, Count, Model, Name, Seconds, Sentence, Timestamp, Word
from cpr_operator.api.member_status import Role


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
    """What happened, in a sentence."""
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
