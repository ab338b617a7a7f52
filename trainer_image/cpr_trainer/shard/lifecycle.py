"""The lifecycle of a shard: it follows its roster, restores, serves, saves at cuts, and ends.

Starting -> Restoring -> Ready -> Flushing; Restoring <-> BelowFloor; and with a rollback from Ready to Restoring.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from queue import SimpleQueue
from time import monotonic
from typing import assert_never

from cpr_contract import CONTRACT_VERSION
from cpr_contract.env import ROLE_SHARD
from cpr_contract.reports import ExitCode, Problem, SaveRef, ShardReport, ShardState
from cpr_contract.roster import ShardRoster
from cpr_contract.spec import JobSpec
from cpr_trainer.checkpoint.format.documents import DamagedError
from cpr_trainer.checkpoint.restore.restorer import (
    BelowFloor,
    Cancelled,
    NothingVerifies,
    Outcome,
    Restored,
    Restorer,
    RestoreTarget,
    restore_target_of,
)
from cpr_trainer.checkpoint.write.checkpointer import Chosen, ShardCheckpointer
from cpr_trainer.checkpoint.write.save import Committed, GivenUp, SaveFailed
from cpr_trainer.exchange.handshake import Identity
from cpr_trainer.parity.flush import Rebuilt
from cpr_trainer.shard.resume import ShardControlBlock, resume, resume_state_of
from cpr_trainer.shard.service import Service
from cpr_trainer.shard.state import Cuts, Losses, Progress, ReplayBarrier, order_of
from cpr_trainer.shard.status import TableCounter
from cpr_trainer.store import StoreFullError

_LOG = logging.getLogger(__name__)

#: The exit code of a process that SIGTERM ends. The operator treats it as a loss.
TERMINATED = 128 + signal.SIGTERM


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of the process. `save` is the complete save that the successor will find; None if there is a loss."""

    code: int
    save: SaveRef | None = None


@dataclass(frozen=True, slots=True)
class _RestoreEnded:
    target: RestoreTarget
    outcome: Outcome | BaseException


#: Results of other threads. An unexpected error is raised on the main thread.
Event = Committed | SaveFailed | GivenUp | Chosen | Problem | BaseException


class Lifecycle:
    """One incarnation of one shard, from its first roster to its end. All methods but `post` run on the main thread.

    `control_block` outlives a server that is killed: the next one resumes from it. `on_rebuilt` is called when the rows
    are from parity, before they are served.
    """

    def __init__(self, job: JobSpec, roster: ShardRoster, service: Service, control_block: ShardControlBlock) -> None:
        self.roster = roster
        self.state = ShardState.RESTORING
        self._job = job
        self._service = service
        self._control_block = control_block
        service.on_cut = self.cut
        service.persist = self.persist
        service.process_number = control_block.process_number
        self._metrics = service.metrics
        self._events: SimpleQueue[_RestoreEnded | Event] = SimpleQueue()
        self._problem: Problem | None = None
        self._restored: Restored | None = None
        self._tried: RestoreTarget | None = None
        self._cancel: threading.Event | None = None
        self._open_loss = False
        self._tables = TableCounter(job, service.dynamic)
        self.on_rebuilt: Callable[[Rebuilt], None] = lambda _rebuilt: None

    def begin(self, restorer: Restorer, saving: ShardCheckpointer) -> None:
        """Resume from the last process, or start to restore. `restorer` and `saving` report results by `post`."""
        self._restorer = restorer
        self._saving = saving
        saving.persist = self.persist
        self._service.counters = self.roster.counters
        state = self._control_block.read()
        if state is not None and state.account.generation == self.roster.counters.generation:
            self._restored, self._tried = state.account.restored, restore_target_of(self.roster)
            self.state = ShardState.READY
            resume(state, self._service, saving)
            self.persist()
            number = self._control_block.process_number
            _LOG.info("process %d of this pod resumes from step %d", number, max(state.applied))
        else:
            self._control_block.forget()
            self._restore_if_due()

    def identity(self) -> Identity:
        """Return this shard's identity, in the generation of its roster."""
        roster = self.roster
        return Identity(self._job.job_uid, ROLE_SHARD, roster.index, roster.incarnation, roster.counters.generation)

    def post(self, event: Event) -> None:
        """Queue an event for the main thread; any thread may call this."""
        self._events.put(event)

    def follow(self, roster: ShardRoster) -> Ending | None:
        """Follow a newer roster; return the end of this process if the roster fences it off."""
        if self.state is ShardState.FLUSHING:
            return None  # a successor may exist by now, and waits for this flush
        me = (self.roster.index, self.roster.incarnation)
        if roster.newest_incarnation > roster.incarnation or (roster.index, roster.incarnation) != me:
            return Ending(ExitCode.SUPERSEDED)
        if roster.counters.generation != self.roster.counters.generation:
            self._control_block.forget()
            self._service.stop()
            self._saving.stop()
            self._service.store_full = False
            self.state, self._restored = ShardState.RESTORING, None
        self.roster = roster
        self._service.counters = roster.counters
        self._saving.stored_bits = roster.stored_bits
        self._restore_if_due()
        return None

    def _handle_events(self) -> None:
        while not self._events.empty():
            match event := self._events.get_nowait():
                case _RestoreEnded():
                    self._on_restore(event)
                case Committed():
                    self._on_commit(event)
                case SaveFailed(problem):
                    self._metrics.saves.failed.inc()
                    self._problem = problem
                    self._service.store_full = problem.reason == StoreFullError.reason
                case GivenUp():
                    self._on_given_up(event)
                case Chosen():
                    progress = self._service.progress
                    self._saving.on_chosen(event, None if progress is None else self._service.mark(progress))
                case Problem():
                    self._problem = event
                case BaseException():
                    raise event
                case _:
                    assert_never(event)

    def cut(self) -> None:
        """Save the rows as they are: every rank has reached the cut."""
        assert self._service.progress is not None, "a cut is reached while nothing is served"
        self._saving.save("Anchor", self._service.mark(self._service.progress))

    def tick(self) -> None:
        """Handle events, and do what is due. Raises the error that ended a restore or a save for good."""
        self._handle_events()
        self._saving.tick(monotonic(), self.roster.priority_interval_s, self._service.progress)

    def terminate(self) -> Ending | None:
        """Handle SIGTERM: save what no save holds. Call this until it returns the end, and serve nothing meanwhile.

        The process ends with a loss unless every rank has pushed since the restore: the extent of the loss is unknown
        before that.
        """
        if self.state is not ShardState.FLUSHING:
            progress = self._service.progress
            if progress is None:
                if self._cancel is not None:
                    self._cancel.set()
                return Ending(TERMINATED)  # nothing was served, so nothing more is lost
            if progress.dirty or self._saving.unsaved:
                # The flush may replace a cut, which the successor takes again.
                self._saving.save("Flush", self._service.mark(progress))
            else:
                self._saving.stop()
            self._open_loss = not progress.resumed
            self._service.stop()
            self.state = ShardState.FLUSHING
        if not self._saving.idle:
            return None
        self._handle_events()  # the commit itself may be among them
        if self._open_loss:
            return Ending(TERMINATED)
        return Ending(ExitCode.FLUSHED, self._service.newest_save or SaveRef("", 0, 0))

    def report(self, unresponsive: tuple[int, ...], overdue: tuple[int, ...] = ()) -> ShardReport:
        """Return the report. unresponsive, overdue: ranks that sent nothing for the job's `silence_s`, `overdue_s`."""
        progress, restored = self._service.progress, self._restored
        resumed = None
        if progress is not None and progress.resumed:
            order = order_of(progress.total_samples, self._job.data.batch_size)
            resumed = progress.losses.resumed_samples(order)
        return ShardReport(
            contract=CONTRACT_VERSION,
            job_uid=self._job.job_uid,
            index=self.roster.index,
            incarnation=self.roster.incarnation,
            counters=self.roster.counters,
            state=self.state,
            applied=() if progress is None else progress.applied,
            newest_save=self._service.newest_save,
            restored_samples=None if restored is None else restored.samples,
            resumed_samples=resumed,
            lost=() if progress is None else progress.losses.lost,
            load_s=None if restored is None else restored.load_s,
            silent=tuple(f"trainer/{rank}" for rank in unresponsive),
            problem=self._problem,
            row_updates=None if progress is None else progress.row_updates,
            replayed_samples=0 if progress is None else progress.replayed,
            replayed_in_order=progress is None or progress.in_order,
            overdue=tuple(f"trainer/{rank}" for rank in overdue),
            lives=self._control_block.process_number,
            restarts=self._control_block.container_restarts,
            in_place_s=self._control_block.in_place_s,
            replay_s=None if progress is None else progress.replay_s,
            protected_samples=self._service.protected_samples,
            rebuilt=restored is not None and restored.rebuilt is not None,
            tables=self._tables.counts(progress, self._service.newest_save, monotonic()),
        )

    def persist(self) -> None:
        """Write the resume state for the next process; a shard that does not serve leaves it as it is."""
        if self._service.progress is not None and self._restored is not None:
            state = resume_state_of(self._service, self._saving, self._service.progress, self._restored)
            self._control_block.write(state)

    def _restore_if_due(self) -> None:
        """Start a restore unless the shard serves, may not restore yet, or has tried the same target."""
        target = restore_target_of(self.roster)
        if self._service.progress is not None or not self.roster.may_restore:
            return
        if self._cancel is not None:
            if target != self._tried:
                self._cancel.set()
            return
        if target == self._tried:
            return
        self._tried, self._cancel = target, threading.Event()
        self.state = ShardState.RESTORING
        arguments = (self.roster, self._cancel)
        threading.Thread(target=self._run_restore, args=arguments, name="restore", daemon=True).start()

    def _run_restore(self, roster: ShardRoster, cancel: threading.Event) -> None:
        try:
            outcome: Outcome | BaseException = self._restorer.restore(roster, cancel)
        except BaseException as error:  # noqa: BLE001 -- the main thread raises it
            outcome = error
        self._events.put(_RestoreEnded(restore_target_of(roster), outcome))

    def _on_restore(self, ended: _RestoreEnded) -> None:
        self._cancel = None
        outcome = ended.outcome
        if isinstance(outcome, BaseException):
            raise outcome
        if ended.target != restore_target_of(self.roster) or isinstance(outcome, Cancelled):
            self._tried = None
            self._restore_if_due()
            return
        match outcome:
            case Restored():
                self._serve(outcome)
            case BelowFloor(offer):
                self.state, self._service.newest_save = ShardState.BELOW_FLOOR, offer
            case NothingVerifies(problem):
                self._problem = problem
            case _:
                assert_never(outcome)

    def _serve(self, restored: Restored) -> None:
        self._restored = restored
        if self._problem is not None and self._problem.reason != DamagedError.reason:
            self._problem = None  # the store answers again
        self._service.newest_save, self._service.given_up_step = restored.save, 0
        self._service.saved_steps = restored.applied
        updates = restored.row_updates
        losses = Losses.restored(restored.lost, self.roster.trainers, restored.applied, updates.counted)
        generation = self.roster.counters.generation
        self._saving.start(restored.chain, restored.top, monotonic(), restored.restore_record)
        self.state = ShardState.READY
        cuts = Cuts(loose=not self._job.lockstep)
        progress = Progress(generation, restored.applied, losses, replace(updates, counted=()), cuts=cuts)
        if self._job.replay.enabled:
            progress.replay_barrier = ReplayBarrier.closed(self.roster.trainers)
        if restored.rebuilt is not None:
            self._service.saved_steps = restored.rebuilt.saved_steps
            progress.order, progress.dirty = restored.rebuilt.order, True
            self.on_rebuilt(restored.rebuilt)
        self._service.start(progress)
        self.persist()
        self._metrics.load_seconds.set(restored.load_s)
        _LOG.info("serves from step %d, %.2f s after the start of the restore", restored.step, restored.load_s)

    def _on_commit(self, committed: Committed) -> None:
        self._saving.on_commit(committed)
        self._service.store_full = False
        draft = committed.save.draft
        if draft.generation != self.roster.counters.generation:
            return  # from before a rollback
        self._problem = None
        if draft.kind != "Priority":
            self._service.newest_save = SaveRef(committed.saved.ref.key, draft.step, draft.samples)
            self._service.saved_steps = draft.applied
        self.persist()
        self._service.answer_all()  # trainers that wait for the last cut send nothing

    def _on_given_up(self, given_up: GivenUp) -> None:
        self._saving.on_given_up(given_up)
        self._problem, self._service.store_full = given_up.problem, False
        draft, progress = given_up.save.draft, self._service.progress
        if draft.kind == "Flush":
            self._open_loss = True
        elif draft.kind == "Anchor" and progress is not None:
            # No later save has the rows of the job's last cut, and none of them has changed since.
            last = draft.generation == progress.generation and draft.samples == progress.total_samples
            if given_up.base_lost and last:
                self._saving.save("Anchor", self._service.mark(progress))
            else:
                progress.dirty = True
                self._service.given_up_step = draft.step
        self.persist()
        self._service.answer_all()
