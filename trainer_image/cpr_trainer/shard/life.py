"""The life of a shard: follows its roster, restores, serves, saves at cuts, and ends well.

Starting -> Restoring -> Ready -> Flushing; Restoring <-> BelowFloor; and with a rollback from Ready to Restoring.
"""

from __future__ import annotations

import logging
import signal
import threading
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Literal, assert_never

from cpr_contract import CONTRACT_VERSION
from cpr_contract.exits import ExitCode, Problem
from cpr_contract.reports import SaveRef, ShardReport, ShardState
from cpr_contract.roster import ShardRoster
from cpr_contract.spec import JobSpec
from cpr_trainer.placement import layout_hash
from cpr_trainer.shard.losses import Losses, order_of
from cpr_trainer.shard.metrics import Metrics
from cpr_trainer.shard.restore import (
    Aim,
    BelowFloor,
    Cancelled,
    NothingVerifies,
    Outcome,
    Restored,
    Restorer,
    aim_of,
)
from cpr_trainer.shard.saver import Committed, Copy, SaveFailed, Saver
from cpr_trainer.shard.service import Progress, Service
from cpr_trainer.snapshot import DamagedError, ShardMeta

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


_Mail = _RestoreEnded | Committed | SaveFailed | Problem


class Life:
    """One incarnation of one shard, from its first roster to its end. All methods but `post` on the main thread."""

    def __init__(self, job: JobSpec, roster: ShardRoster, service: Service, metrics: Metrics) -> None:
        self.roster = roster
        self.state = ShardState.RESTORING
        self._job = job
        self._service = service
        service.on_cut = self.cut
        self._metrics = metrics
        self._layout = layout_hash(job.model, job.shards)
        self._mail: SimpleQueue[_Mail] = SimpleQueue()
        self._problem: Problem | None = None
        self._restored: Restored | None = None
        self._tried: Aim | None = None
        self._cancel: threading.Event | None = None
        self._open_loss = False

    def begin(self, restorer: Restorer, saver: Saver) -> None:
        """Start to restore. Restorer and saver tell what happens by `post`."""
        self._restorer = restorer
        self._saver = saver
        self._service.counters = self.roster.counters
        self._restore_if_due()

    def post(self, mail: Committed | SaveFailed | Problem) -> None:
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
            self._service.stop()
            self._saver.discard()
            self.state, self._restored = ShardState.RESTORING, None
        self.roster = roster
        self._service.counters = roster.counters
        self._restore_if_due()
        return None

    def read_mail(self) -> None:
        """Act on what the restoring and saving threads told. Raises what ended a restore for good."""
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
                    self._metrics.failed_saves.inc()
                    self._problem = problem
                case Problem():
                    self._problem = mail
                case _:
                    assert_never(mail)

    def cut(self) -> None:
        """Copy the rows for a save: every rank has reached the cut."""
        self._copy("Anchor")

    def terminate(self) -> Ending | None:
        """SIGTERM: save what no save holds. Call it until it returns how to end; serve nobody meanwhile.

        Only a shard that was served again by every rank since its restore may say that nothing is lost: else a loss is
        open whose extent nobody knows, and its end must look like one.
        """
        if self.state is not ShardState.FLUSHING:
            progress = self._service.progress
            if progress is None:
                return self._give_up()
            if progress.dirty:
                self._copy("Flush")
            self._open_loss = not progress.losses.resumed
            self._service.stop()
            self.state = ShardState.FLUSHING
        if not self._saver.idle:
            return None
        self.read_mail()  # the commit itself may be news
        if self._open_loss:
            return Ending(TERMINATED)
        return Ending(ExitCode.FLUSHED, self._service.newest_save or SaveRef("", 0, 0))

    def report(self, silent: tuple[int, ...]) -> ShardReport:
        """Return where the shard stands. silent: ranks that were not heard for too long."""
        progress, restored = self._service.progress, self._restored
        resumed = None
        if progress is not None:
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
        )

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
        self._service.newest_save = restored.save
        losses = Losses.restored(restored.lost, self.roster.trainers)
        generation = self.roster.counters.generation
        self.state = ShardState.READY
        self._service.start(Progress(generation, restored.applied, losses))
        self._metrics.load_seconds.set(restored.load_s)

    def _copy(self, kind: Literal["Anchor", "Flush"]) -> None:
        progress = self._service.progress
        assert progress is not None  # noqa: S101 -- only a serving shard has anything to copy
        started = monotonic()
        rows, state = self._service.arena.copy()
        mark = self._service.mark(progress)
        meta = ShardMeta(
            job_uid=self._job.job_uid,
            generation=mark.generation,
            index=self.roster.index,
            incarnation=self.roster.incarnation,
            kind=kind,
            step=mark.step,
            samples=mark.samples,
            layout=self._layout,
            applied=mark.applied,
            lost=mark.lost,
        )
        self._saver.submit(Copy(meta, rows, state))
        self._metrics.copy_seconds.set(monotonic() - started)

    def _on_commit(self, committed: Committed) -> None:
        self._metrics.saves.inc()
        self._metrics.save_seconds.set(committed.save_s)
        if committed.generation != self.roster.counters.generation:
            return  # of before a rollback
        self._problem = None
        self._service.newest_save = committed.save
