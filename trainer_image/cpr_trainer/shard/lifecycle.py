"""The life of a shard: follows its roster, restores, serves, saves at cuts, and ends well.

Starting -> Restoring -> Ready -> Flushing; Restoring <-> BelowFloor; and with a rollback from Ready to Restoring.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from time import monotonic
from typing import assert_never

from cpr_contract import CONTRACT_VERSION
from cpr_contract.manifests import ShardManifest
from cpr_contract.reports import ExitCode, Problem, SaveRef, ShardReport, ShardState
from cpr_contract.roster import ShardRoster
from cpr_contract.spec import JobSpec
from cpr_trainer.checkpoint.format.documents import DamagedError
from cpr_trainer.checkpoint.restore.restorer import (
    Aim,
    BelowFloor,
    Cancelled,
    NothingVerifies,
    Outcome,
    Restored,
    Restorer,
    aim_of,
)
from cpr_trainer.checkpoint.write.checkpointer import ShardCheckpointer
from cpr_trainer.checkpoint.write.decisions import Chosen, Cuts
from cpr_trainer.checkpoint.write.save import Committed, GivenUp, Mark, SaveFailed
from cpr_trainer.parity.flush import Rebuilt
from cpr_trainer.shard.lives import go_on, kept_of
from cpr_trainer.shard.losses import Losses, order_of
from cpr_trainer.shard.metrics import Metrics
from cpr_trainer.shard.progress import Progress
from cpr_trainer.shard.replay_barrier import ReplayBarrier
from cpr_trainer.shard.resume import Kept, Page
from cpr_trainer.shard.service import Service
from cpr_trainer.store import StoreFullError

_LOG = logging.getLogger(__name__)

#: The exit code of a process that SIGTERM ends: to the operator an ordinary loss.
TERMINATED = 128 + signal.SIGTERM


@dataclass(frozen=True, slots=True)
class Ending:
    """How the process is to end. `save` is what the successor will find, if that is all there was."""

    code: int
    save: SaveRef | None = None


@dataclass(frozen=True, slots=True)
class _RestoreEnded:
    aim: Aim
    outcome: Outcome | BaseException


#: What threads aside tell. An error that nobody foresaw is raised on the main thread.
Mail = Committed | SaveFailed | GivenUp | Chosen | Problem | BaseException


class Life:
    """One incarnation of one shard, from its first roster to its end. All methods but `post` on the main thread.

    `page` outlives a server that is killed: the next one goes on with what it finds there. `on_rebuilt` is called when
    the rows are from parity, before they are served.
    """

    def __init__(self, job: JobSpec, roster: ShardRoster, service: Service, metrics: Metrics, page: Page) -> None:
        self.roster = roster
        self.state = ShardState.RESTORING
        self._job = job
        self._service = service
        self._page = page
        service.on_cut = self.cut
        service.keep = self.keep
        service.life = page.process_number
        self._metrics = metrics
        self._mail: SimpleQueue[_RestoreEnded | Mail] = SimpleQueue()
        self._problem: Problem | None = None
        self._restored: Restored | None = None
        self._tried: Aim | None = None
        self._cancel: threading.Event | None = None
        self._open_loss = False
        self.on_rebuilt: Callable[[Rebuilt], None] = lambda _rebuilt: None

    def begin(self, restorer: Restorer, saving: ShardCheckpointer) -> None:
        """Go on where the last life stood, or start to restore. Who restores and saves tells what happens by `post`."""
        self._restorer = restorer
        self._saving = saving
        saving.keep = self.keep
        self._service.counters = self.roster.counters
        kept = self._page.read()
        if kept is not None and kept.account.generation == self.roster.counters.generation:
            self._go_on(kept)
        else:
            self._page.forget()
            self._restore_if_due()

    def post(self, mail: Mail) -> None:
        """Tell the main thread; any thread may call it."""
        self._mail.put(mail)

    def follow(self, roster: ShardRoster) -> Ending | None:
        """Take in a newer roster; return how to end if it fences this process off."""
        if self.state is ShardState.FLUSHING:
            return None  # the successor is expected by now, and waits for this flush
        me = (self.roster.index, self.roster.incarnation)
        if roster.newest_incarnation > roster.incarnation or (roster.index, roster.incarnation) != me:
            return Ending(ExitCode.SUPERSEDED)
        if roster.counters.generation != self.roster.counters.generation:
            self._page.forget()
            self._service.stop()
            self._saving.stop()
            self._service.store_full = False
            self.state, self._restored = ShardState.RESTORING, None
        self.roster = roster
        self._service.counters = roster.counters
        self._saving.stored_bits = roster.stored_bits
        self._restore_if_due()
        return None

    def _read_mail(self) -> None:
        while True:
            try:
                mail = self._mail.get_nowait()
            except Empty:
                return
            match mail:
                case _RestoreEnded():
                    self._on_restore(mail)
                case Committed():
                    self._on_commit(mail)
                case SaveFailed(problem):
                    self._metrics.saves.failed.inc()
                    self._problem = problem
                    self._service.store_full = problem.reason == StoreFullError.reason
                case GivenUp():
                    self._on_given_up(mail)
                case Chosen():
                    self._saving.on_chosen(mail, self._mark())
                case Problem():
                    self._problem = mail
                case BaseException():
                    raise mail
                case _:
                    assert_never(mail)

    def cut(self) -> None:
        """Save the rows as they are: every rank has reached the cut."""
        assert self._service.progress is not None  # noqa: S101 -- only a serving shard reaches a cut
        self._saving.save("Anchor", self._service.mark(self._service.progress))

    def turn(self) -> None:
        """Act on what was told, and do what is due. Raises what ended a restore, or a save, for good."""
        self._read_mail()
        self._saving.turn(monotonic(), self.roster.priority_interval_s, self._service.progress)

    def terminate(self) -> Ending | None:
        """SIGTERM: save what no save holds. Call it until it returns how to end; serve nobody meanwhile.

        Only a shard that was served again by every rank since its restore may say that nothing is lost: else a loss is
        open whose extent nobody knows, and its end must look like one.
        """
        if self.state is not ShardState.FLUSHING:
            progress = self._service.progress
            if progress is None:
                return self._give_up()
            if progress.dirty or self._saving.unsaved:
                # In the place of a cut: the successor takes that again.
                self._saving.save("Flush", self._service.mark(progress))
            else:
                self._saving.stop()
            self._open_loss = not progress.resumed
            self._service.stop()
            self.state = ShardState.FLUSHING
        if not self._saving.idle:
            return None
        self._read_mail()  # the commit itself may be news
        if self._open_loss:
            return Ending(TERMINATED)
        return Ending(ExitCode.FLUSHED, self._service.newest_save or SaveRef("", 0, 0))

    def report(self, silent: tuple[int, ...], overdue: tuple[int, ...] = ()) -> ShardReport:
        """Return where the shard stands. silent, overdue: ranks not heard for the job's `silence_s`, `overdue_s`."""
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
            silent=tuple(f"trainer/{rank}" for rank in silent),
            problem=self._problem,
            row_updates=None if progress is None else progress.row_updates,
            replayed_samples=0 if progress is None else progress.replayed,
            replayed_in_order=progress is None or progress.in_order,
            overdue=tuple(f"trainer/{rank}" for rank in overdue),
            lives=self._page.process_number,
            restarts=self._page.container_restarts,
            in_place_s=self._page.in_place_s,
            replay_s=None if progress is None else progress.replay_s,
            protected_samples=self._service.protected_samples,
            rebuilt=restored is not None and restored.rebuilt is not None,
        )

    def keep(self) -> None:
        """Leave to the next life where the shard stands; a shard that serves nobody leaves what it left last."""
        if self._service.progress is not None and self._restored is not None:
            self._page.write(kept_of(self._service, self._saving, self._service.progress, self._restored))

    def _go_on(self, kept: Kept) -> None:
        self._restored, self._tried = kept.account.restored, aim_of(self.roster)
        self.state = ShardState.READY
        go_on(kept, self._service, self._saving)
        self.keep()
        _LOG.info("life %d goes on from step %d", self._page.process_number, max(kept.applied))

    def _mark(self) -> Mark | None:
        progress = self._service.progress
        return None if progress is None else self._service.mark(progress)

    def _give_up(self) -> Ending:
        """End without having served: whatever is lost was lost before."""
        if self._cancel is not None:
            self._cancel.set()
        return Ending(TERMINATED)

    def _restore_if_due(self) -> None:
        """Start a restore unless the shard serves, may not restore yet, or has done it under this very roster."""
        aim = aim_of(self.roster)
        if self._service.progress is not None or not self.roster.may_restore:
            return
        if self._cancel is not None:
            if aim != self._tried:
                self._cancel.set()
            return
        if aim == self._tried:
            return
        self._tried, self._cancel = aim, threading.Event()
        self.state = ShardState.RESTORING
        arguments = (self.roster, self._cancel)
        threading.Thread(target=self._run_restore, args=arguments, name="restore", daemon=True).start()

    def _run_restore(self, roster: ShardRoster, cancel: threading.Event) -> None:
        try:
            outcome: Outcome | BaseException = self._restorer.restore(roster, cancel)
        except BaseException as error:  # noqa: BLE001 -- the main thread raises it
            outcome = error
        self._mail.put(_RestoreEnded(aim_of(roster), outcome))

    def _on_restore(self, ended: _RestoreEnded) -> None:
        self._cancel = None
        outcome = ended.outcome
        if isinstance(outcome, BaseException):
            raise outcome
        if ended.aim != aim_of(self.roster) or isinstance(outcome, Cancelled):
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
            self._problem = None  # the store is back
        self._service.newest_save, self._service.given_up_step = restored.save, 0
        self._service.saved_steps = restored.applied
        losses = Losses.restored(restored.lost, self.roster.trainers)
        generation = self.roster.counters.generation
        self._saving.start(restored.chain, restored.top, monotonic(), restored.origin)
        self.state = ShardState.READY
        cuts = Cuts(loose=not self._job.lockstep)
        progress = Progress(generation, restored.applied, losses, restored.row_updates, cuts=cuts)
        if self._job.replay.enabled:
            progress.catch_up = ReplayBarrier.begun(self.roster.trainers)
        if restored.rebuilt is not None:
            self._service.saved_steps = restored.rebuilt.saved_steps
            progress.order, progress.dirty = restored.rebuilt.order, True
            self.on_rebuilt(restored.rebuilt)
        self._service.start(progress)
        self.keep()
        self._metrics.load_seconds.set(restored.load_s)
        _LOG.info("serves from step %d on, %.2f s after it began to restore", restored.step, restored.load_s)

    def _on_commit(self, committed: Committed) -> None:
        self._saving.on_commit(committed)
        self._service.store_full = False
        draft = committed.save.draft
        if draft.generation != self.roster.counters.generation:
            return  # of before a rollback
        self._problem = None
        if draft.kind != "Priority":
            self._service.newest_save = SaveRef(committed.saved.ref.key, draft.step, draft.samples)
            self._service.saved_steps = draft.applied
        self.keep()

    def _on_given_up(self, given_up: GivenUp) -> None:
        self._saving.on_given_up(given_up)
        self._problem, self._service.store_full = given_up.problem, False
        draft, progress = given_up.save.draft, self._service.progress
        if given_up.groundless and progress is not None and _is_last(draft, progress):
            self._saving.save("Anchor", self._service.mark(progress))
        elif draft.kind == "Flush":
            self._open_loss = True
        elif draft.kind == "Anchor" and progress is not None:
            progress.dirty = True
            self._service.given_up_step = draft.step
        self.keep()


def _is_last(draft: ShardManifest, progress: Progress) -> bool:
    """Whether this is the last cut of all: no other carries what it would have held, and no row has changed since."""
    is_cut = draft.kind == "Anchor" and draft.generation == progress.generation
    return is_cut and draft.samples == progress.total_samples
