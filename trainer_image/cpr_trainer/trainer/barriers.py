"""Barriers, at which all trainers wait between two steps: decisive evaluations, and changes of their number.

At an evaluation that may end the job they score the model, and continue once its anchor is committed. The best model is
therefore always an anchor, and an anchor contains the evaluation of its own model: a rollback to it has the same
early-stop state. Before their number changes they all wait at one step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from torch import Tensor, zeros_like

from cpr_contract.reports import BestEvaluation, TrainerState
from cpr_contract.roster import AnchorRef
from cpr_trainer.checkpoint.format.documents import DamagedError
from cpr_trainer.checkpoint.format.records import find_anchor, is_even
from cpr_trainer.trainer.allreduce.group import Group
from cpr_trainer.trainer.control import PollInterrupts
from cpr_trainer.trainer.save_coordinator import SaveCoordinator
from cpr_trainer.trainer.scores import EarlyStopState
from cpr_trainer.trainer.setup import Setup
from cpr_trainer.trainer.status import StatusPublisher
from cpr_trainer.trainer.step import Stepper
from cpr_trainer.trainer.store_retry import retry_store_errors

_LOG = logging.getLogger(__name__)


class Barriers:
    """The barriers of this trainer. `poll_interrupts` is for waits."""

    def __init__(
        self, setup: Setup, stepper: Stepper, status: StatusPublisher, poll_interrupts: PollInterrupts
    ) -> None:
        self._setup = setup
        self._stepper = stepper
        self._status = status
        self._poll_interrupts = poll_interrupts
        self._passed = 0
        self._uneven_step = 0

    def reset(self) -> None:
        """Begin a generation."""
        self._passed = self._uneven_step = 0

    def on_group_formed(self) -> None:
        """Repeat the present barrier: other members of the new group may not have passed it."""
        self._passed = 0

    def goal(self) -> int:
        """Return the step of the next barrier."""
        state = self._stepper.state
        if state.early_stop_state.should_stop(self._setup.early_stop):
            return state.done
        return self._setup.next_barrier(max(state.done - 1, self._passed))

    def ends(self) -> bool:
        """Return whether training ends at the present step."""
        state = self._stepper.state
        if state.done == self._setup.last_step:
            return self._setup.data_has_end
        return state.early_stop_state.should_stop(self._setup.early_stop)

    def due(self) -> bool:
        """Return whether there is a barrier at the present step that was not passed."""
        step = self._stepper.state.done
        return self._setup.early_stop is not None and self._passed < step == self._setup.next_barrier(step - 1)

    def wait(
        self,
        group: Group,
        coordinator: SaveCoordinator | None,
        resend_missing: Callable[[], bool],
        announce: Callable[[int], None],
    ) -> None:
        """Evaluate the model, and wait for its anchor. `announce` announces a cut to the shards.

        `resend_missing` sends shards the pushes that they lack up to here; it returns whether they have them all.
        Raises what ends a wait, GroupBroken, DataError, DivergedError.
        """
        state = self._stepper.state
        self._status.update(state=TrainerState.TRAINING)

        def poll_and_resend() -> None:
            self._poll_interrupts()
            resend_missing()

        with self._status.waiting(self._poll_interrupts) as poll_interrupts:
            while not resend_missing():
                group.listen(poll_interrupts)
        # Once all have arrived, the shards have all pushes: the trainers evaluate the model that is saved.
        self._wait_for_all(group, state.done, self._poll_interrupts)
        self._evaluate(group, leads=coordinator is not None)
        announce(state.done)
        with self._status.waiting(poll_and_resend) as poll_interrupts:
            while coordinator is not None and coordinator.finish(state) is None:
                announce(state.done)
                group.listen(poll_interrupts)
            self._wait_for_all(group, state.done, poll_interrupts)
        self._passed = state.done
        self.report_best(coordinator)

    def report_halted(self, applied: Sequence[int]) -> None:
        """Without lockstep: report to the leader after which step this rank has halted.

        applied: the last step of this rank that each shard has applied.
        """
        state = self._stepper.state
        if state.averaging is not None:
            # An earlier process may have pushed steps that the state of this one lacks. Step 0 cannot be a cut.
            state.averaging.halted_step = max(state.done, self._uneven_step + 1, *applied)

    def report_met(self, anchor: AnchorRef) -> None:
        """Report that all trainers wait at this anchor, if any number of trainers can start from it.

        Otherwise the barrier moves to the next step. Raises what ends a wait.
        """
        if self._status.updated.met == anchor:
            return
        try:
            even = retry_store_errors(lambda: is_even(self._setup.store, anchor), self._status, self._poll_interrupts)
        except DamagedError:
            _LOG.warning("the anchor of step %d does not verify", anchor.step, exc_info=True)
            even = False
        if even:
            self._status.update(met=anchor)
        else:
            self._uneven_step = anchor.step

    def report_best(self, coordinator: SaveCoordinator | None) -> None:
        """On the leader, report the best evaluation. Raises what ends a wait."""
        early_stop_state = self._stepper.state.early_stop_state
        if coordinator is None or early_stop_state.best is None:
            return
        anchor = self._best_anchor(coordinator, early_stop_state)
        if anchor is not None:
            self._status.update(best=BestEvaluation(anchor, early_stop_state.best, early_stop_state.since))

    def _best_anchor(self, coordinator: SaveCoordinator, early_stop_state: EarlyStopState) -> AnchorRef | None:
        known, step = self._status.updated.best, early_stop_state.best_step
        if known is not None and known.anchor.step == step:
            return known.anchor
        if (anchor := coordinator.committer.anchor_of(step)) is not None:
            return anchor
        store, job_uid = self._setup.store, self._setup.job.job_uid
        generations = range(self._status.updated.counters.generation, 0, -1)

        def find() -> AnchorRef | None:
            """Return the anchor of the newest generation that has one at this step."""
            return next(filter(None, (find_anchor(store, job_uid, each, step) for each in generations)), None)

        found = retry_store_errors(find, self._status, self._poll_interrupts)
        if found is None:
            _LOG.warning("the anchor of the best evaluation, at step %d, cannot be read", step)
        return found

    def _wait_for_all(self, group: Group, step: int, poll_interrupts: PollInterrupts) -> None:
        """Wait until all trainers have arrived."""
        group.announce(step)
        group.go(0, poll_interrupts)

    def _evaluate(self, group: Group, *, leads: bool) -> None:
        """Evaluate the model with all others; all take the leader's early-stop state, and update it in the same way."""
        state, early_stop = self._stepper.state, self._setup.early_stop
        assert early_stop is not None, "there are no barriers without early stopping"
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
