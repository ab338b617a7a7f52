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
from cpr_trainer.trainer.control import PollInterrupts
from cpr_trainer.trainer.save_coordinator import SaveCoordinator
from cpr_trainer.trainer.scores import EarlyStopState
from cpr_trainer.trainer.setup import Setup
from cpr_trainer.trainer.status import StatusPublisher
from cpr_trainer.trainer.step import Stepper
from cpr_trainer.trainer.store_retry import poll_and_sleep, retry_store_errors

_LOG = logging.getLogger(__name__)

#: Pushes what shards lack up to where this trainer stands; returns whether they all have it now.
ResendMissing = Callable[[], bool]


class Barriers:
    """This trainer's stops. `poll_interrupts` is for waits."""

    def __init__(
        self, setup: Setup, stepper: Stepper, status: StatusPublisher, poll_interrupts: PollInterrupts
    ) -> None:
        self._setup = setup
        self._stepper = stepper
        self._status = status
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
        if state.early_stop_state.should_stop(self._setup.early_stop):
            return state.done
        return self._setup.next_barrier(max(state.done - 1, self._stood))

    def ends(self) -> bool:
        """Whether nothing is left to train."""
        state = self._stepper.state
        return state.done == self._setup.last_step or state.early_stop_state.should_stop(self._setup.early_stop)

    def due(self) -> bool:
        """Whether all are to stand here, and have not."""
        step = self._stepper.state.done
        return self._setup.early_stop is not None and self._stood < step == self._setup.next_barrier(step - 1)

    def stand(
        self,
        group: Group,
        coordinator: SaveCoordinator | None,
        resend_missing: ResendMissing,
        announce: Callable[[int], None],
    ) -> None:
        """Score the model here, and wait for its anchor. `announce` tells shards of a cut.

        Raises what ends a wait, GroupBroken, DataError, DivergedError.
        """
        state = self._stepper.state
        self._status.update(state=TrainerState.TRAINING)

        def poll_and_resend() -> None:
            self._poll_interrupts()
            resend_missing()

        with self._status.waiting(self._poll_interrupts) as poll_interrupts:
            while not resend_missing():
                poll_and_sleep(poll_interrupts)
        # What the others pushed is there as well once all are here: they score the model that is saved.
        self._gather(group, state.done, self._poll_interrupts)
        self._evaluate(group, leads=coordinator is not None)
        announce(state.done)
        with self._status.waiting(poll_and_resend) as poll_interrupts:
            while coordinator is not None and coordinator.finish(state) is None:
                announce(state.done)
                group.listen(poll_interrupts)
            self._gather(group, state.done, poll_interrupts)
        self._stood = state.done
        self.report_best(coordinator)

    def report_halted(self, applied: Sequence[int]) -> None:
        """Without lockstep: let the leader know after which step this rank stands. applied: of it, by shards."""
        state = self._stepper.state
        if state.averaging is not None:
            # Who was here before may have pushed more than its successor was given; and step 0 is no cut.
            state.averaging.halted_step = max(state.done, self._uneven + 1, *applied)

    def meet_at(self, anchor: AnchorRef) -> None:
        """All have met: say so if the anchor is good for any number of trainers, else meet a step later.

        Raises what ends a wait.
        """
        if self._status.met == anchor:
            return
        try:
            even = retry_store_errors(lambda: is_even(self._setup.store, anchor), self._status, self._poll_interrupts)
        except DamagedError:
            _LOG.warning("the anchor of step %d does not verify", anchor.step, exc_info=True)
            even = False
        if even:
            self._status.update(met=anchor)
        else:
            self._uneven = anchor.step

    def report_best(self, coordinator: SaveCoordinator | None) -> None:
        """Report the best evaluation, on the leader. Raises what ends a wait."""
        early_stop_state = self._stepper.state.early_stop_state
        if coordinator is None or early_stop_state.best is None:
            return
        anchor = self._best_anchor(coordinator, early_stop_state)
        if anchor is not None:
            self._status.update(best=BestEvaluation(anchor, early_stop_state.best, early_stop_state.since))

    def _best_anchor(self, coordinator: SaveCoordinator, early_stop_state: EarlyStopState) -> AnchorRef | None:
        known, step = self._status.best, early_stop_state.best_step
        if known is not None and known.anchor.step == step:
            return known.anchor
        if (anchor := coordinator.committer.anchor_of(step)) is not None:
            return anchor
        job, counters = self._setup.job, self._status.report().counters
        found = retry_store_errors(
            lambda: _find_anchor(self._setup.store, job.job_uid, counters.generation, step),
            self._status,
            self._poll_interrupts,
        )
        if found is None:
            _LOG.warning("the anchor of the best evaluation, at step %d, cannot be read", step)
        return found

    def _gather(self, group: Group, step: int, poll_interrupts: PollInterrupts) -> None:
        """Wait until all trainers are here."""
        group.announce(step)
        group.go(0, poll_interrupts)

    def _evaluate(self, group: Group, *, leads: bool) -> None:
        """Score the model with all others, and come to the same verdict: that of the leader, and this evaluation."""
        state, early_stop = self._stepper.state, self._setup.early_stop
        assert early_stop is not None  # noqa: S101 -- else nobody stands
        before = state.early_stop_state.tensor()
        before = before if leads else zeros_like(before)

        def sum_up(counters: tuple[Tensor, ...]) -> None:
            with self._status.waiting(self._poll_interrupts) as poll_interrupts:
                group.sum((before, *counters), poll_interrupts)

        scores = self._stepper.held_out.score_at_barrier(state.done, state.replica, sum_up)
        state.early_stop_state = EarlyStopState.of(before).after(scores, early_stop)
        self._status.update(evaluation=scores)
        self._stepper.keep()
        if state.early_stop_state.should_stop(early_stop):
            _LOG.info(
                "stops early at step %d: the best evaluation was at %d", state.done, state.early_stop_state.best_step
            )


def _find_anchor(store: Store, job_uid: str, generation: int, step: int) -> AnchorRef | None:
    """Return the anchor at a step of the newest generation that has one. Raises StoreError."""
    generations = range(generation, 0, -1)
    return next(filter(None, (find_anchor(store, job_uid, each, step) for each in generations)), None)
