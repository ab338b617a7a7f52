"""A save of a shard in progress: its contents, the outcomes that its threads report, and its metrics."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge

from cpr_contract.manifests import ManifestRef, Ranges, RestoreRecord, RowUpdates, ShardManifest
from cpr_contract.reports import Problem
from cpr_trainer.checkpoint.format.documents import DamagedError
from cpr_trainer.embedding.capture import Capture
from cpr_trainer.embedding.priority import Claim, Tracker
from cpr_trainer.store import BucketMissingError


class Position(Protocol):
    """The progress of the rows in a generation."""

    @property
    def generation(self) -> int:
        """The generation."""

    @property
    def applied(self) -> tuple[int, ...]:
        """The last step applied of each rank."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The state of the rows for the manifest of a save.

    `last`: it is the last of training. `at_barrier`: all ranks are at its step, because the job stops there.
    """

    generation: int
    step: int
    samples: int
    applied: tuple[int, ...]
    lost: Ranges
    row_updates: RowUpdates
    last: bool = False
    at_barrier: bool = False


@dataclass(frozen=True, slots=True)
class SavedShard:
    """A committed save of a shard; a full one would hold `full_rows` rows."""

    manifest: ShardManifest
    ref: ManifestRef
    full_rows: int


@dataclass(frozen=True, slots=True, eq=False)
class Save:
    """A save to be written: the rows of `capture`, under the manifest `draft` with their parts.

    `epoch` is the arena's epoch that it ends. `tracker` counts the written rows; `claim` is its own. The manifest is
    written after `may_commit` is set, and after `restore_record`, if there is one.
    """

    draft: ShardManifest
    capture: Capture
    epoch: int
    claim: Claim | None = None
    tracker: Tracker | None = None
    restore_record: RestoreRecord | None = None
    may_commit: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True, eq=False)
class Committed:
    """A save is committed."""

    save: Save
    saved: SavedShard
    save_s: float


@dataclass(frozen=True, slots=True)
class SaveFailed:
    """An attempt failed and will be repeated."""

    problem: Problem


@dataclass(frozen=True, slots=True, eq=False)
class GivenUp:
    """A save failed and is not repeated: the rows or the store have changed."""

    save: Save
    problem: Problem

    @property
    def base_lost(self) -> bool:
        """True if its base or a written part of it is gone from the store."""
        return self.problem.reason in {BucketMissingError.reason, DamagedError.reason}


#: The outcome of a save; an unexpected error ends the process.
SaveOutcome = Committed | SaveFailed | GivenUp | BaseException


class SaveMetrics:
    """All metrics of saves, in the registry of their shard."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.committed = Counter("cprjob_shard_saves_total", "Saves committed, by kind", ["kind"], registry=registry)
        self.failed = Counter("cprjob_shard_failed_saves_total", "Attempts to save that failed", registry=registry)
        self.given_up = Counter("cprjob_shard_given_up_saves_total", "Saves that were given up", registry=registry)
        self.rows = Counter("cprjob_shard_saved_rows_total", "Rows in committed saves", registry=registry)
        self.seconds = Gauge("cprjob_shard_save_seconds", "Time that the last save took to write", registry=registry)
        self.mark_seconds = Gauge(
            "cprjob_shard_cut_seconds",
            "Time that the last mark of rows to save kept pushes waiting",
            registry=registry,
        )
