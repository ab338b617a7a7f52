"""The saves of a serving shard: all changed rows at a cut and at the end, and the most important rows between cuts.

All but the choice of rows runs on the main thread, which never waits for the store: the writer's thread gets a capture
of the rows, and its outcome returns as an event. The steps of a priority save are choose, mark, write, manifest,
forget; a failed one stops before `forget`. The manifest waits until no rank can send again a push that the rows have.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, Literal

from cpr_contract import CONTRACT_VERSION
from cpr_contract.manifests import RestoreRecord, ShardManifest
from cpr_contract.roster import ShardRoster
from cpr_contract.spec import JobSpec
from cpr_trainer.checkpoint.format.parts import Link, basis
from cpr_trainer.checkpoint.format.quantise import EXACT
from cpr_trainer.checkpoint.write.save import Committed, GivenUp, Mark, Position, Save, SaveMetrics
from cpr_trainer.checkpoint.write.writer import WriterThread
from cpr_trainer.embedding.arena import LocalRows
from cpr_trainer.embedding.capture import Capture
from cpr_trainer.embedding.placement import layout_hash
from cpr_trainer.embedding.priority import Claim, Tracker
from cpr_trainer.exchange import WINDOW

#: The pushes of a trainer that may be unacknowledged when it dies, and one that it was about to send.
_REPEATABLE = WINDOW + 1


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """The rows for a priority save, or the error of the choice, which was started in `generation`."""

    claim: Claim | BaseException
    generation: int


class Chooser:
    """Chooses at most `quota` rows of large tables by `tracker`, on a thread that calls `report`.

    Ranking all rows of a shard takes longer than a push may wait.
    """

    def __init__(self, tracker: Tracker, quota: int, report: Callable[[Chosen], None]) -> None:
        self.tracker = tracker
        self._quota = quota
        self._report = report
        self._choosing = False
        self._started_s = 0.0
        self._taken_step = 0

    def start(self, now_s: float) -> None:
        """Start after a restore, with all rows saved."""
        self.tracker.reset()
        self._started_s, self._taken_step = now_s, 0

    def choose_if_due(self, now_s: float, interval_s: float, position: Position) -> None:
        """Start a choice, `interval_s` after the last one, if every rank has advanced since that was taken."""
        if not self._choosing and now_s - self._started_s >= interval_s and min(position.applied) > self._taken_step:
            self._choosing, self._started_s = True, now_s
            threading.Thread(target=self._choose, args=(position.generation,), name="choose", daemon=True).start()

    def take(self, chosen: Chosen, position: Position | None) -> Claim | None:
        """Return the claim, None if it is obsolete. Raises the error of the choice."""
        self._choosing = False
        if isinstance(chosen.claim, BaseException):
            raise chosen.claim
        if position is None or position.generation != chosen.generation:
            return None
        self._taken_step = min(position.applied)
        return chosen.claim

    def _choose(self, generation: int) -> None:
        try:
            claim: Claim | BaseException = self.tracker.choose(self._quota)
        except BaseException as error:  # noqa: BLE001 -- the main thread raises it
            claim = error
        self._report(Chosen(claim, generation))


class ShardCheckpointer:
    """The saves of one incarnation, all on the main thread. `chooser` is None with the strategy `Full`.

    `stored_bits` are those of each value in the next save, from the roster. `persist` is called after a change of the
    next save's chain, before its use.
    """

    def __init__(  # noqa: PLR0913, PLR0917 -- the rows, the writer, and choices
        self,
        job: JobSpec,
        roster: ShardRoster,
        local: LocalRows,
        writer: WriterThread,
        metrics: SaveMetrics,
        chooser: Chooser | None,
    ) -> None:
        self.stored_bits = roster.stored_bits
        self.persist: Callable[[], None] = lambda: None
        self._rules = job.snapshots
        self._arena = local.arena
        self._writer = writer
        self._metrics = metrics
        self._chooser = chooser
        self._links: tuple[Link, ...] = ()
        self._top = ""  # the key of the newest save, below a priority save
        self._restore_record: RestoreRecord | None = None
        self._in_progress: Save | None = None
        self._counted = True
        (first_place, end), *further = local.spans
        self._blank = ShardManifest(
            contract=CONTRACT_VERSION,
            job_uid=job.job_uid,
            generation=0,
            index=roster.index,
            incarnation=roster.incarnation,
            kind="Anchor",
            step=0,
            samples=0,
            layout=layout_hash(job.model),
            first_place=first_place,
            places=end - first_place,
            applied=(),
            lost=(),
            further=tuple(further),
        )

    @property
    def idle(self) -> bool:
        """True if nothing is being written."""
        return self._writer.idle

    @property
    def unsaved(self) -> bool:
        """True if a complete save is not committed yet."""
        return self._in_progress is not None and self._in_progress.draft.kind != "Priority"

    @property
    def start_arguments(self) -> tuple[tuple[Link, ...], str, RestoreRecord | None]:
        """The arguments for `start` of the next process."""
        return self._links, self._top, self._restore_record

    @property
    def in_progress(self) -> tuple[str, int]:
        """The kind and the step of the save that is not committed yet; empty and 0 for none."""
        return ("", 0) if self._in_progress is None else (self._in_progress.draft.kind, self._in_progress.draft.step)

    def start(
        self,
        links: tuple[Link, ...],
        top: str,
        now_s: float,
        record: RestoreRecord | None = None,
        *,
        counted: bool = True,
    ) -> None:
        """Continue from a restore with this record, in which the save `top` was loaded last.

        `links` are the possible bases of the next save. `counted`: the tracker has counted all updates since the last
        of them.
        """
        self._links, self._top, self._restore_record, self._counted = links, top, record, counted
        if self._chooser is not None:
            self._chooser.start(now_s)

    def stop(self) -> None:
        """Drop the uncommitted save: the rows are about to be restored, or all of them are saved."""
        self._writer.submit(None)
        self._in_progress = None

    def save(self, kind: Literal["Anchor", "Flush"], mark: Mark) -> None:
        """Save all rows that changed since the base of the new save, which replaces one in progress."""
        started_s = monotonic()
        arena = self._arena
        if arena.epochs.used_up:
            self._links = ()
            self.persist()  # the next process must not use them either
            arena.forget_epochs()
        # The last save, from which the finished model is read, is a full and exact one.
        last = mark.last and self.stored_bits != EXACT
        base = () if last else basis(self._rules.rebase, self._links)
        stops = kind == "Flush" or mark.at_barrier
        bits = EXACT if last or stops else self.stored_bits
        draft = self._manifest(kind, mark, bits=bits, chain=tuple(link.ref for link in base))
        epoch = arena.epochs.now
        capture = arena.capture_changes(base[-1].epoch if base else 0)
        capture.expedited = stops
        self._submit(draft, capture, epoch, None if self._chooser is None else Claim(None))
        self._metrics.mark_seconds.set(monotonic() - started_s)

    def tick(self, now_s: float, interval_s: float, position: Position | None) -> None:
        """Allow the commit of a priority save, or start the choice of the next, if that is due.

        interval_s: time between two of them, 0 for none. `position` is None while nothing is served.
        """
        in_progress = self._in_progress
        if position is None:
            return
        if in_progress is not None:
            steps = (now - marked for now, marked in zip(position.applied, in_progress.draft.applied, strict=True))
            if min(steps) >= _REPEATABLE:
                in_progress.may_commit.set()
        elif self._chooser is not None and interval_s > 0:
            self._chooser.choose_if_due(now_s, interval_s, position)

    def on_chosen(self, chosen: Chosen, mark: Mark | None) -> None:
        """Save the chosen rows, unless there was a cut, or nothing is served. Raises the error of the choice."""
        started_s = monotonic()
        arena = self._arena
        claim = None if self._chooser is None else self._chooser.take(chosen, mark)
        if claim is None or claim.slots is None or mark is None or self._in_progress is not None:
            return
        mark = replace(mark, step=min(mark.applied))
        draft = self._manifest("Priority", mark, bits=self.stored_bits, strategy=self._rules.strategy)
        changed = claim.slots[arena.epochs.of[claim.slots] > (self._links[-1].epoch if self._links else 0)]
        self._submit(draft, arena.capture_rows(changed), arena.epochs.now, claim)
        self._metrics.mark_seconds.set(monotonic() - started_s)

    def on_commit(self, committed: Committed) -> None:
        """Use a committed save as the next base, unless another save has replaced it."""
        save, saved = committed.save, committed.saved
        self._metrics.committed.labels(save.draft.kind).inc()
        self._metrics.rows.inc(saved.manifest.rows)
        self._metrics.seconds.set(committed.save_s)
        if save is not self._in_progress:
            return
        self._in_progress, self._top = None, saved.ref.key
        if self._chooser is not None and save.claim is not None:
            self._chooser.tracker.forget(save.claim)
        if save.draft.kind != "Priority":
            link = Link(saved.ref, save.epoch, saved.manifest.rows, saved.full_rows)
            self._links = (*self._links, link) if save.draft.chain else (link,)
            self._counted = True

    def on_given_up(self, given_up: GivenUp) -> None:
        """Drop a save: the next one has its rows, and is a full one if the bases are lost."""
        self._metrics.given_up.inc()
        if given_up.base_lost:
            self._links = ()
        if given_up.save is self._in_progress:
            self._in_progress = None

    def _submit(self, draft: ShardManifest, capture: Capture, epoch: int, claim: Claim | None) -> None:
        tracker = None if self._chooser is None or claim is None else self._chooser.tracker
        if tracker is not None and claim is not None:
            tracker.mark(claim)
        if draft.kind == "Priority" and claim is not None:
            added = claim.added_updates if self._counted else None
            draft = replace(draft, after=self._top, added_updates=added)
        full = draft.kind != "Priority" and not draft.chain
        save = Save(draft, capture, epoch, claim, tracker, self._restore_record if full else None)
        if draft.kind != "Priority":
            save.may_commit.set()
        self._in_progress = save
        self._writer.submit(save)

    def _manifest(self, kind: Literal["Anchor", "Flush", "Priority"], mark: Mark, **fields: Any) -> ShardManifest:
        return replace(
            self._blank,
            kind=kind,
            generation=mark.generation,
            step=mark.step,
            samples=mark.samples,
            applied=mark.applied,
            lost=mark.lost,
            row_updates=mark.row_updates,
            **fields,
        )
