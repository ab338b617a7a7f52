"""Saves of the leader: it plans cuts and hands copies of the dense state to the committer."""

from __future__ import annotations

import random
from collections.abc import Callable
from time import monotonic

from cpr_contract.roster import AnchorRef, TrainerRoster
from cpr_trainer.checkpoint.anchor.committer import AnchorCommitter
from cpr_trainer.checkpoint.anchor.pruning import Pruner
from cpr_trainer.exchange import Exchange
from cpr_trainer.trainer.pace import SaveCost
from cpr_trainer.trainer.setup import Setup
from cpr_trainer.trainer.state import DenseState

#: Steps between the announcement of a cut and the cut: more than are prefetched, so that every push carries it.
LEAD_STEPS = 3
#: A cut is due once this part of the memory for kept pushes is used: its save frees the memory before pushes are lost.
_FULL = 0.75


class CutSchedule:
    """Announces cuts: a pure schedule over steps and trained seconds.

    Each step that `next_stop` returns is a cut: the next step at which all trainers stop. `trained_s` everywhere:
    seconds of training since the process started, without pauses. `early_s`: the seconds between the last two cuts if
    the last one was urgent and its interval not over; else None.
    """

    def __init__(self, next_stop: Callable[[int], int]) -> None:
        self._next_stop = next_stop
        self._since_s: float | None = None
        self._due_now = False
        self.announced = 0
        self.early_s: float | None = None

    def announce(
        self, step: int, trained_s: float, interval_s: float, *, uncommitted: bool, urgent: bool = False
    ) -> int:
        """Return the cut that all pushes of `step` carry, 0 if there is none.

        A cut stays announced until the next. While one is `uncommitted` no other is announced, except a barrier at
        which all trainers stop. An `urgent` cut does not wait for the interval.
        """
        if self._since_s is None:
            self._since_s = trained_s
        if step <= self.announced:
            return self.announced
        stop = self._next_stop(step - 1)
        if step + 2 * LEAD_STEPS > stop:
            self.announced = stop
            self._begin_interval(trained_s)
        elif not uncommitted and (urgent or self._due_now or trained_s - self._since_s >= interval_s):
            self.announced = step + LEAD_STEPS
            elapsed_s = trained_s - self._since_s
            self.early_s = None if self._due_now or elapsed_s >= interval_s else elapsed_s
            self._begin_interval(trained_s)
        return self.announced

    def _begin_interval(self, trained_s: float) -> None:
        self._since_s, self._due_now = trained_s, False

    def hasten(self) -> None:
        """Make the next cut due at once."""
        self._due_now = True

    def void(self) -> None:
        """Drop a cut that a shard did not survive: the next is due at once."""
        self.hasten()
        self.announced = 0


class SaveCoordinator:
    """Coordinates the saves of one generation, across groups while this trainer leads them.

    `roster` returns the newest roster, `recorded` the key of the newest anchor in the job's status; `anchors` are those
    already committed, oldest first.
    """

    def __init__(
        self,
        setup: Setup,
        exchange: Exchange,
        roster: Callable[[], TrainerRoster],
        recorded: Callable[[], str],
        anchors: tuple[AnchorRef, ...],
    ) -> None:
        self.cost = SaveCost()
        self._setup = setup
        self._exchange = exchange
        self._roster = roster
        self.schedule = CutSchedule(setup.next_barrier)
        self._offered_step = 0
        self._void_step = 0
        self._dense_saved = monotonic()
        self._saving = False
        self.committer = AnchorCommitter(
            setup.store,
            exchange.saved,
            lambda: tuple(peer.incarnation for peer in sorted(roster().shards, key=lambda peer: peer.index)),
            setup.job.snapshots.keep,
            pruner=Pruner(setup.store, setup.job.job_uid),
            recorded=recorded,
            anchors=anchors,
            rng=random.Random(),
            frozen=(setup.inputs.data, setup.evaluation_inputs.data, setup.inputs.workers),
            vocabularies=setup.vocabularies,
            committed=setup.inputs.count_new_files,
        )
        self.committer.start()

    def announce(self, step: int, trained_s: float) -> int:
        """Return the cut that pushes of `step` announce. Raises the committer's error, as `save` and `finish` do."""
        self.committer.check()
        void = self.committer.state.void
        if void > self._void_step:
            self._void_step = void
            self.schedule.void()
        # Evaluated at each step: the cut takes a while to free memory, and needs no other one after it.
        full, interval_s = self._exchange.replay_fill() >= _FULL, self._roster().interval_s
        return self.schedule.announce(step, trained_s, interval_s, uncommitted=self.committer.busy, urgent=full)

    def on_group_formed(self, state: DenseState) -> None:
        """Cut at once when a group has formed, if pushes are kept: new members have none of the earlier ones.

        A cut that is announced but not reached yet serves as well.
        """
        if self._setup.job.replay.enabled and state.reached > 0 and self.schedule.announced <= state.reached:
            self.schedule.hasten()

    def save(self, state: DenseState) -> None:
        """Offer the committer the save that is due after step `state.reached`; called after every step and join.

        If an evaluation is due at this step, it comes before the save.
        """
        self.committer.check()
        step, setup = state.done, self._setup
        if setup.early_stop is not None and state.early_stop_state.step < step == setup.next_barrier(step - 1):
            return
        if state.reached >= self.schedule.announced > self._offered_step:
            self._offer_cut(state, self.schedule.announced)
        elif monotonic() - self._dense_saved >= self._setup.job.snapshots.dense_interval_s:
            self._dense_saved = monotonic()
            self.committer.offer_dense(self._setup.dense_copy(state, self._roster()))

    def take_saving(self) -> bool:
        """Return whether a cut was being committed at any time since the last call, and the store did not fail."""
        before, self._saving = self._saving, self.committer.busy and not self.committer.failing
        return before or self._saving

    def finish(self, state: DenseState) -> AnchorRef | None:
        """Return the anchor of step `state.reached`, None until it is committed; there is none of step 0.

        No step is trained meanwhile.
        """
        self.committer.check()
        anchor = self.committer.anchor_of(state.reached)
        if state.reached and anchor is None and not (self.committer.busy and self._offered_step == state.reached):
            self._offer_cut(state, state.reached)
        return anchor

    def close(self) -> None:
        """End the committer."""
        self.committer.close()

    def _offer_cut(self, state: DenseState, step: int) -> None:
        self._offered_step = step
        self._dense_saved = monotonic()
        self._saving = True
        self.committer.offer_cut(self._setup.dense_copy(state, self._roster(), step))
