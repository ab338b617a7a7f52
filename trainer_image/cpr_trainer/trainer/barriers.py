"""Where all trainers stand between two steps: at evaluations that may end the job, and at meetings.

At an evaluation they score the model, and go on once its anchor is committed. So the best model is always an anchor,
and an anchor knows the evaluation of its own model: whoever goes back to one goes on with the same verdict. At a
meeting they stand, at one step, until their number has changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from torch import Tensor, zeros_like

from cpr_contract.reports import BestEvaluation, TrainerState
from cpr_contract.roster import AnchorRef
from cpr_trainer.checkpoint.format.documents import DamagedError
from cpr_trainer.checkpoint.format.records import find_anchor, is_even
from cpr_trainer.store import Store
from cpr_trainer.trainer.allreduce.group import Group
from cpr_trainer.trainer.early_stop import Verdict
from cpr_trainer.trainer.interrupts import PollInterrupts
from cpr_trainer.trainer.save_coordinator import Leading
from cpr_trainer.trainer.setup import Setup
from cpr_trainer.trainer.status import Board
from cpr_trainer.trainer.step import Stepper
from cpr_trainer.trainer.store_retry import insist, poll_and_sleep

_LOG = logging.getLogger(__name__)

#: Pushes what shards lack up to where this trainer stands; returns whether they all have it now.
Mend = Callable[[], bool]


class Stops:
    """This trainer's stops. `poll_interrupts` is for waits."""

    def __init__(self, setup: Setup, stepper: Stepper, board: Board, poll_interrupts: PollInterrupts) -> None:
        self._setup = setup
        self._stepper = stepper
        self._board = board
        self._poll_interrupts = poll_interrupts
        self._stood = 0
        self._uneven = 0

    def start_over(self) -> None:
        """A generation begins."""
        self._stood = self._uneven = 0

    def forget(self) -> None:
        """A group begins: all stand once more where they are, because nobody knows how far the others came."""
        self._stood = 0

    def goal(self) -> int:
        """Return the step to train to before all stand again, or for good."""
        state = self._stepper.state
        if state.verdict.ends(self._setup.early_stop):
            return state.done
        return self._setup.next_stop(max(state.done - 1, self._stood))

    def ends(self) -> bool:
        """Whether nothing is left to train."""
        state = self._stepper.state
        return state.done == self._setup.last_step or state.verdict.ends(self._setup.early_stop)

    def due(self) -> bool:
        """Whether all are to stand here, and have not."""
        step = self._stepper.state.done
        return self._setup.early_stop is not None and self._stood < step == self._setup.next_stop(step - 1)

    def stand(self, group: Group, leading: Leading | None, mend: Mend, announce: Callable[[int], None]) -> None:
        """Score the model here, and wait for its anchor. `announce` tells shards of a cut.

        Raises what ends a wait, GroupBroken, DataError, DivergedError.
        """
        state = self._stepper.state
        self._board.set(state=TrainerState.TRAINING)

        def poll_and_resend() -> None:
            self._poll_interrupts()
            mend()

        with self._board.waiting(self._poll_interrupts) as poll_interrupts:
            while not mend():
                poll_and_sleep(poll_interrupts)
        # What the others pushed is there as well once all are here: they score the model that is saved.
        self._gather(group, state.done, self._poll_interrupts)
        self._judge(group, leads=leading is not None)
        announce(state.done)
        with self._board.waiting(poll_and_resend) as poll_interrupts:
            while leading is not None and leading.finish(state) is None:
                announce(state.done)
                group.listen(poll_interrupts)
            self._gather(group, state.done, poll_interrupts)
        self._stood = state.done
        self.tell_best(leading)

    def say_halted(self, applied: Sequence[int]) -> None:
        """Without lockstep: let the leader know after which step this rank stands. applied: of it, by shards."""
        state = self._stepper.state
        if state.desk is not None:
            # Who was here before may have pushed more than its successor was given; and step 0 is no cut.
            state.desk.halted = max(state.done, self._uneven + 1, *applied)

    def meet_at(self, anchor: AnchorRef) -> None:
        """All have met: say so if the anchor is good for any number of trainers, else meet a step later.

        Raises what ends a wait.
        """
        if self._board.met == anchor:
            return
        try:
            even = insist(lambda: is_even(self._setup.store, anchor), self._board, self._poll_interrupts)
        except DamagedError:
            _LOG.warning("the anchor of step %d does not verify", anchor.step, exc_info=True)
            even = False
        if even:
            self._board.set(met=anchor)
        else:
            self._uneven = anchor.step

    def tell_best(self, leading: Leading | None) -> None:
        """Report the best evaluation, on the leader. Raises what ends a wait."""
        verdict = self._stepper.state.verdict
        if leading is None or verdict.best is None:
            return
        anchor = self._best_anchor(leading, verdict)
        if anchor is not None:
            self._board.set(best=BestEvaluation(anchor, verdict.best, verdict.since))

    def _best_anchor(self, leading: Leading, verdict: Verdict) -> AnchorRef | None:
        known, step = self._board.best, verdict.best_step
        if known is not None and known.anchor.step == step:
            return known.anchor
        if (anchor := leading.committer.anchor_of(step)) is not None:
            return anchor
        job, counters = self._setup.job, self._board.report().counters
        found = insist(
            lambda: _find_anchor(self._setup.store, job.job_uid, counters.generation, step),
            self._board,
            self._poll_interrupts,
        )
        if found is None:
            _LOG.warning("the anchor of the best evaluation, at step %d, cannot be read", step)
        return found

    def _gather(self, group: Group, step: int, poll_interrupts: PollInterrupts) -> None:
        """Wait until all trainers are here."""
        group.announce(step)
        group.go(0, poll_interrupts)

    def _judge(self, group: Group, *, leads: bool) -> None:
        """Score the model with all others, and come to the same verdict: that of the leader, and this evaluation."""
        state, early_stop = self._stepper.state, self._setup.early_stop
        assert early_stop is not None  # noqa: S101 -- else nobody stands
        before = state.verdict.tensor()
        before = before if leads else zeros_like(before)

        def sum_up(counters: tuple[Tensor, ...]) -> None:
            with self._board.waiting(self._poll_interrupts) as poll_interrupts:
                group.sum((before, *counters), poll_interrupts)

        scores = self._stepper.held_out.score_at_rest(state.done, state.replica, sum_up)
        state.verdict = Verdict.of(before).after(scores, early_stop)
        self._board.set(evaluation=scores)
        self._stepper.keep()
        if state.verdict.ends(early_stop):
            _LOG.info("stops early at step %d: the best evaluation was at %d", state.done, state.verdict.best_step)


def _find_anchor(store: Store, job_uid: str, generation: int, step: int) -> AnchorRef | None:
    """Return the anchor at a step of the newest generation that has one. Raises StoreError."""
    generations = range(generation, 0, -1)
    return next(filter(None, (find_anchor(store, job_uid, each, step) for each in generations)), None)
