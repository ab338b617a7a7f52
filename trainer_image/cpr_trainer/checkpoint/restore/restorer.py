"""Restores a shard from parity, or from the newest save on its lineage that verifies, on a thread of its own.

It retries while the store is down: only a new roster or the end of the process ends a restore early.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic

from cpr_contract import CONTRACT_VERSION
from cpr_contract.manifests import ManifestRef, Ranges, RestoreRecord, RowUpdates
from cpr_contract.reports import Problem, SaveRef
from cpr_contract.roster import ShardRoster
from cpr_contract.spec import JobSpec
from cpr_trainer.checkpoint.format.documents import DamagedError
from cpr_trainer.checkpoint.format.keys import parse_save, shard_folder
from cpr_trainer.checkpoint.format.parts import Link
from cpr_trainer.checkpoint.format.records import claim, write_restore_record
from cpr_trainer.checkpoint.restore.lineage import Candidate, candidates
from cpr_trainer.checkpoint.restore.loading import RestoredShard, load_shard
from cpr_trainer.embedding.arena import LocalRows
from cpr_trainer.parity.flush import FlushAccount, Rebuilt
from cpr_trainer.runtime import backoff, problem_of, retry
from cpr_trainer.store import Store, StoreError
from cpr_trainer.store.interface import ExistsError

_LOG = logging.getLogger(__name__)

_LAST_RETRY_S = 5.0


@dataclass(frozen=True, slots=True)
class Restored:
    """The rows are loaded, and the restore record is written.

    `save` is None for first values. `chain` is the possible base of the next save, oldest first; `top` is the key of
    the last save on top, empty for none. With `rebuilt` the rows are from parity, and newer than `save`.
    """

    save: SaveRef | None
    step: int
    samples: int
    applied: tuple[int, ...]
    lost: Ranges
    row_updates: RowUpdates
    load_s: float
    top: str = ""
    chain: tuple[Link, ...] = ()
    restore_record: RestoreRecord | None = None
    rebuilt: Rebuilt | None = None


@dataclass(frozen=True, slots=True)
class BelowFloor:
    """The newest save that verifies is older than the floor; None is step 0."""

    offer: SaveRef | None


@dataclass(frozen=True, slots=True)
class NothingVerifies:
    """Neither a save of this generation nor its first anchor verifies."""

    problem: Problem


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The restore was cancelled before its choice."""


Outcome = Restored | BelowFloor | NothingVerifies | Cancelled

#: The part of a roster that determines a restore: if it changes, the restore is repeated.
RestoreTarget = tuple[int, int, bool]


def restore_target_of(roster: ShardRoster) -> RestoreTarget:
    """Return the target of a restore under this roster."""
    return roster.counters.generation, roster.floor_samples, roster.may_restore


#: Fills the arena from parity, if that is fit for this roster; see `rebuild`.
FromParity = Callable[[ShardRoster, Callable[[], bool]], tuple[FlushAccount, Rebuilt] | None]


@dataclass(frozen=True, slots=True, eq=False)
class Restorer:
    """Restores one shard's rows. `report` is called with problems, on the restoring thread.

    Parity (`from_parity`) is tried first, because it is newer than the saves in the store.
    """

    store: Store
    job: JobSpec
    local: LocalRows
    report: Callable[[Problem], None]
    rng: random.Random
    from_parity: FromParity | None = None

    def restore(self, roster: ShardRoster, cancel: threading.Event) -> Outcome:
        """Restore what `roster` allows. Raises SnapshotError if `restoreFrom` cannot be used, StoreError if fenced."""

        def attempt() -> Outcome:
            if cancel.is_set():
                return Cancelled()
            return self._rebuild(roster, cancel) or self._attempt(roster)

        def pause(error: StoreError, delay_s: float) -> None:
            if isinstance(error, ExistsError):
                raise error
            _LOG.warning("restore: %s", error)
            self.report(problem_of(error))
            cancel.wait(delay_s)

        return retry(attempt, StoreError, backoff(self.rng, cap_s=_LAST_RETRY_S), pause)

    def _rebuild(self, roster: ShardRoster, cancel: threading.Event) -> Restored | None:
        """Restore from parity, if possible, without the store."""
        if self.from_parity is None or roster.incarnation == 1:
            return None
        started = monotonic()
        found = self.from_parity(roster, cancel.is_set)
        if found is None:
            return None
        account, rebuilt = found
        # The newest save before this incarnation.
        key = "" if account.save is None else account.save.key
        own = key.startswith(shard_folder(self.job.job_uid, roster.counters.generation, roster.index))
        # The first save of this incarnation is complete, and is committed with this record.
        record = self._record(roster, ManifestRef(key, "") if own else None, account.step, account.samples)
        return Restored(
            account.save,
            account.step,
            account.samples,
            account.applied,
            account.lost,
            account.row_updates,
            load_s=monotonic() - started,
            restore_record=record,
            rebuilt=rebuilt,
        )

    def _attempt(self, roster: ShardRoster) -> Outcome:
        started = monotonic()
        if self.job.replay.enabled:
            # Before the listing: trainers drop pushes in saves that a predecessor commits before this, not after.
            claim(self.store, roster, self.job.job_uid)
        for candidate in candidates(self.store, self.job, roster, self.local.placement):
            try:
                restored = load_shard(self.store, candidate, self.local)
            except DamagedError as error:
                if candidate.kind == "RestoreFrom":
                    raise
                _LOG.warning("restore: %s", error)
                damage = problem_of(error)
                self.report(damage)
                continue
            return self._take(roster, candidate, restored, started)
        return NothingVerifies(Problem("AnchorDamaged", damage.message, "An older anchor is used; check the store."))

    def _take(self, roster: ShardRoster, candidate: Candidate, restored: RestoredShard, started: float) -> Outcome:
        for damage in restored.damaged:
            _LOG.warning("restore: a priority save is left out: %s", damage)
            self.report(problem_of(damage))
        # A save of another job is not one of its own.
        own = candidate.kind in {"Save", "Anchor"}
        save = SaveRef(candidate.key, restored.step, restored.samples) if own else None
        if restored.samples < roster.floor_samples:
            return BelowFloor(save)
        parent = restored.ref if candidate.kind == "Save" else None
        record = replace(self._record(roster, parent, restored.step, restored.samples), replayed=restored.replayed)
        write_restore_record(self.store, record)
        none = (0,) * roster.trainers
        applied, updates = restored.applied or none, restored.row_updates
        if len(applied) != roster.trainers:  # an anchor of another number of trainers: all had completed its step
            applied = (restored.step,) * roster.trainers
        if len(updates.pushed) != roster.trainers:
            updates = replace(updates, pushed=none)  # ranks start their counts with these
        assert len(applied) == len(updates.pushed) == roster.trainers, "a restored step for each rank"
        return Restored(
            save,
            restored.step,
            restored.samples,
            applied,
            restored.lost,
            updates,
            load_s=monotonic() - started,
            top=restored.top,
            chain=restored.chain,
            restore_record=record,
        )

    def _record(self, roster: ShardRoster, parent: ManifestRef | None, step: int, samples: int) -> RestoreRecord:
        """Return the record of a restore from `parent`, a save of this generation; None: from none."""
        save = None if parent is None else parse_save(parent.key)
        ids = roster.counters.generation, roster.index, roster.incarnation
        writer = None if save is None else save.writer
        return RestoreRecord(
            CONTRACT_VERSION, self.job.job_uid, *ids, writer, None if save is None else parent, step, samples
        )
