"""The trainer's loop: meet the group, repair what is missing, train step after step, finish.

Whatever interrupts it ends in one of three places: `run` begins anew with the newest roster (another group or
generation), `_serve` meets the same group again (a lost peer), or a wait goes on (a shard away).
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from time import monotonic, sleep
from typing import Any

from cpr_contract.reports import Result, SaveRef, TrainerState
from cpr_contract.roster import AnchorRef, TrainerRoster
from cpr_trainer.checkpoint.anchor.committer import write_dense
from cpr_trainer.data.loader import Loader
from cpr_trainer.exchange import WINDOW, Exchange
from cpr_trainer.runtime import backoff
from cpr_trainer.store import StoreError
from cpr_trainer.trainer.allreduce.group import NO_STATE, Group, missing_steps
from cpr_trainer.trainer.barriers import Barriers
from cpr_trainer.trainer.control import POLL_INTERVAL_S, ControlSignals, GroupBroken, Interruption, RosterChanged
from cpr_trainer.trainer.initial_state import InitialStateLoader
from cpr_trainer.trainer.prefetch import Feed
from cpr_trainer.trainer.resume import TrainerControlBlock
from cpr_trainer.trainer.save_coordinator import SaveCoordinator
from cpr_trainer.trainer.setup import Setup
from cpr_trainer.trainer.state import DenseState
from cpr_trainer.trainer.status import StatusPublisher
from cpr_trainer.trainer.step import Stepper
from cpr_trainer.trainer.store_retry import retry_store_errors

_LOG = logging.getLogger(__name__)

_SETTLE_S = 5.0
#: Shards that come back get what is kept for them before a trainer ends, because nobody else has it. A cut and a dense
#: save must be possible after that: the grace is 30 s at least, and after a roster that says stop it comes twice.
_REPLAY_S, _REPLAY_STOP_S = 15.0, 30.0
_FLUSH_ATTEMPTS = 5
#: How long a job that stops waits for its last anchor: so many times as long as the anchor before took. That is the
#: grace that the operator gives (`cpr_operator.desired.pod.grace_s`), less what else there is to do in it.
_CUT_COMMITS = 2
_LEAST_CUT_S = 15.0
#: How long a leader that has finished waits for the operator to ask for what only a report can tell.
_RECORDED_S = 60.0


#: Makes a group for a roster, and for the state that this trainer brings to it.
MakeGroup = Callable[[TrainerRoster, DenseState], Group]


class Loop:
    """One trainer's training, from its first roster to the end of the job.

    `make_group` returns this trainer's view of the group that a roster names. `group` and `coordinator` are for whoever
    reports: the present group, and the leader's duties (None elsewhere). With a `control_block` it goes on where the
    last process stood, if that was in the roster's generation.
    """

    def __init__(  # noqa: PLR0913, PLR0917 -- who, of what, and with whom
        self,
        setup: Setup,
        control: ControlSignals,
        status: StatusPublisher,
        exchange: Exchange,
        make_group: MakeGroup,
        control_block: TrainerControlBlock | None = None,
    ) -> None:
        self.group: Group | None = None
        self.coordinator: SaveCoordinator | None = None
        self._setup = setup
        self._control = control
        self._status = status
        self._exchange = exchange
        self._make_group = make_group
        self._stepper = Stepper(setup, control, status, exchange, control_block)
        self._barriers = Barriers(setup, self._stepper, status, control.poll_interrupts)
        self._roster = control.adopt()
        generation = self._roster.counters.generation
        self._resumes = self._stepper.resume(generation)
        self._generation = generation if self._resumes else 0
        control.on_roster = self._follow

    def run(self) -> Result | None:
        """Train to the end; return the final anchor and scores on the leader.

        Raises Terminated (call `flush` then), Superseded, Finished (a follower's end), and the errors that end a
        trainer.
        """
        while True:
            self._take_up(self._control.adopt())
            try:
                return self._serve(self._roster)
            except RosterChanged as changed:
                _LOG.info("%s", changed)

    def flush(self) -> SaveRef | AnchorRef | None:
        """After Terminated: let the shards acknowledge, those that come back only now get what is kept for them.

        The leader then saves the dense state and returns the save.

        Where a roster told everybody to stop, it is the anchor of the step at which all stand, if that is committed in
        time: whatever members come next can start from it. Without lockstep there is such a step only where all have
        met. Raises StoreError if nothing can be saved.
        """
        pause_after_s = _SETTLE_S
        if self._setup.job.replay.enabled:
            pause_after_s = _REPLAY_STOP_S if self._control.job_stops else _REPLAY_S
        settled = False
        with suppress(RosterChanged):  # another group or generation needs nothing of this process any more
            settled = self._stepper.shards.settle_within(pause_after_s)
        state, coordinator = self._stepper.state, self.coordinator
        if coordinator is None or state.done == NO_STATE:
            return None
        alike = self._setup.job.lockstep or self._status.met is not None
        anchor = self._last_cut(coordinator) if settled and state.done and self._control.job_stops and alike else None
        coordinator.close()
        return anchor or self._save_dense(coordinator)

    def _last_cut(self, coordinator: SaveCoordinator) -> AnchorRef | None:
        """Return the anchor of the last complete step; None if a shard is away or misses some, or it takes too long."""
        state, began = self._stepper.state, monotonic()
        self._exchange.announce_cut(state.done)
        pause_after_s = max(_LEAST_CUT_S, _CUT_COMMITS * (coordinator.committer.state.commit_s or 0.0))
        while (anchor := coordinator.finish(state)) is None and monotonic() - began < pause_after_s:
            if self._exchange.unavailable() or min(self._exchange.applied()) < state.done:
                break
            self._control.heartbeat()
            sleep(POLL_INTERVAL_S)
        return anchor

    def _save_dense(self, coordinator: SaveCoordinator) -> SaveRef | None:
        """Save the dense state alone. Raises StoreError."""
        copy = self._setup.dense_copy(self._stepper.state, self._roster)
        delays = backoff(random.Random(), first_s=0.2)
        for _ in range(_FLUSH_ATTEMPTS - 1):
            try:
                return write_dense(self._setup.store, copy) or coordinator.committer.state.dense_save
            except StoreError:
                _LOG.warning("the dense state is not saved yet", exc_info=True)
                sleep(next(delays))
        return write_dense(self._setup.store, copy)

    def close(self) -> None:
        """End the committer, once it has done what it is at."""
        if self.coordinator is not None:
            self.coordinator.close()

    def _follow(self, roster: TrainerRoster) -> None:
        """Go on under a newer roster of the same group and generation."""
        self._adopt(roster)
        if self.group is not None:
            self.group.follow(roster)
        self._status.update(counters=roster.counters)

    def _adopt(self, roster: TrainerRoster) -> None:
        _LOG.info("follows roster %d", roster.counters.roster)
        self._roster = roster
        self._exchange.follow(roster)

    def _take_up(self, roster: TrainerRoster) -> None:
        """Go to the group and generation of a roster.

        The report changes in one piece, so that nothing of the old ones is ever told under the new counters.
        """
        fresh = roster.counters.generation != self._generation
        before = self.coordinator
        self.group = None
        if fresh:
            self.coordinator = None
        self._adopt(roster)
        joining: dict[str, Any] = {"counters": roster.counters, "state": TrainerState.JOINING, "met": None}
        if not fresh:
            self._status.update(**joining)
            return
        nothing_yet: dict[str, Any] = {"step": 0, "samples": 0, "samples_started": 0, "lost": (), "dense_save": None}
        self._status.update(**joining, **nothing_yet, degraded_samples=0, evaluation=None, best=None)
        self._generation = roster.counters.generation
        self._barriers.start_over()
        if before is not None:
            before.close()
        self._resumes = False
        self._stepper.start_over(roster.counters.generation)

    def _serve(self, roster: TrainerRoster) -> Result | None:
        """Train in the group that `roster` names, until the job is done."""
        group = self.group = self._make_group(roster, self._stepper.state)
        try:
            while True:
                try:
                    self._status.update(state=TrainerState.JOINING)
                    self._take_up_duties(roster)
                    self._meet(group)
                    if self.coordinator is not None:
                        self.coordinator.on_group_formed(self._stepper.state)
                    while True:
                        self._train(group)
                        if self._barriers.due():
                            self._barriers.stand(group, self.coordinator, self._resend_missing, self._announce)
                        elif (result := self._halt(group)) is not None:
                            return result
                except GroupBroken as broken:
                    _LOG.info("the group is broken: %s", broken)
        finally:
            group.leave()

    def _take_up_duties(self, roster: TrainerRoster) -> None:
        """Begin to lead, go on, or stop, as the roster says."""
        leads = roster.leader == roster.index
        if self.coordinator is not None and not leads:
            self.coordinator.close()
            self.coordinator = None
        if leads and self.coordinator is None:
            anchors = retry_store_errors(
                self._initial_state().known_anchors, self._status, self._control.poll_interrupts
            )
            self.coordinator = SaveCoordinator(
                self._setup, self._exchange, lambda: self._roster, self._recorded_anchor, anchors
            )

    def _meet(self, group: Group) -> None:
        """Come to the same dense state as all others, with every push up to it on its way."""
        poll_interrupts, state = self._control.poll_interrupts, self._stepper.state
        survived = group.join(state, lambda: self._initial_state().provide(state, poll_interrupts), poll_interrupts)
        if not survived and state.reached < self._setup.last_step:
            try:
                if self._setup.job.lockstep:
                    self._catch_up_with_shards(group)
                else:
                    self._go_back_to_shards()
            except Interruption:
                state.done = NO_STATE  # A loaded state counts once all agree where it goes on.
                raise
        # A trainer that is gone may have completed, and pushed, one step more than anybody here.
        started = self._setup.samples_at(min(state.farthest + 1, self._setup.last_step))
        self._stepper.start(started)
        self._status.update(step=state.reached, samples=state.samples, lost=state.lost)
        self._status.update(**state.scores.report_fields())
        self._stepper.keep()
        self._barriers.forget()
        self._barriers.report_best(self.coordinator)
        if self.coordinator is not None:
            self.coordinator.save(state)

    def _catch_up_with_shards(self, group: Group) -> None:
        """Nobody survived: go on after the highest step that any shard applied of any rank."""
        self._stepper.shards.await_ready()
        group.announce(max(self._exchange.applied()))
        with self._status.waiting(self._control.poll_interrupts) as poll_interrupts:
            reached = group.go(0, poll_interrupts).step
        self._stepper.state.skip_to(max(reached, self._stepper.state.done))

    def _go_back_to_shards(self) -> None:
        """Nobody survived, and ranks stood at different steps: go on with the first that any shard misses of this one.

        Shards drop the pushes that they have, so nothing is lost and nothing pushed twice.
        """
        self._stepper.shards.await_ready()
        state = self._stepper.state
        state.done = min(state.done, *self._exchange.applied())

    def _goal(self) -> int:
        """The step to train to now: the next stop; or where all are to meet, which is here until it is named."""
        state = self._stepper.state
        if state.averaging is None or not self._roster.meet:
            return self._barriers.goal()
        return max(state.done, state.averaging.barrier_step)

    def _train(self, group: Group) -> None:
        stepper, setup = self._stepper, self._setup
        if stepper.state.done < setup.last_step:
            if stepper.pushed is None or self._resumes:
                stepper.shards.await_ready()
                self._resumes = False
            self._repair(stepper.pushed)
        if stepper.state.done >= self._goal():
            return
        self._status.update(state=TrainerState.TRAINING)
        counters = self._roster.counters
        _LOG.info(
            "training after step %d of %d (generation %d, group %d)",
            stepper.state.done,
            setup.last_step,
            counters.generation,
            counters.group,
        )
        loader = Loader(
            setup.dataset,
            setup.order,
            rank=setup.rank,
            trainers=setup.job.trainers,
            first_step=stepper.state.done + 1,
        )
        with Feed(loader, setup.placement, stepper.reader.wait, split=setup.job.prefetch == 1) as feed:
            stepper.train(feed, group, self.coordinator, self._goal)

    def _repair(self, pushed: int | None) -> None:
        """Push the steps up to `done` that this rank has not pushed to every shard."""
        stepper = self._stepper
        missing = missing_steps(stepper.state.done, pushed, self._exchange.applied(), WINDOW)
        self._count_up_to(missing.start)
        for step in missing:
            _LOG.info("computing step %d again", step)
            stepper.repair(step)
        stepper.pushed = max(stepper.pushed or 0, stepper.state.done)

    def _resend_missing(self) -> bool:
        """Push what shards lack up to here, if they came back without it; return whether they have it all."""
        if self._exchange.unavailable() or not self._stepper.shards.settle_within(POLL_INTERVAL_S):
            return False
        self._repair(pushed=None)
        return min(self._exchange.applied()) >= self._stepper.state.done

    def _count_up_to(self, first: int) -> None:
        """Let the count of this rank's row updates stand, on every shard, before step `first`: the next to be pushed.

        Steps that a shard lost and nobody pushes again count; the data says how many rows they changed. There are such
        steps only where this trainer and that shard were replaced together.
        """
        exchange, stepper = self._exchange, self._stepper
        for step in range(min(exchange.counted()) + 1, first):
            self._control.poll_interrupts()
            exchange.count(step, stepper.slice_of(step).access.unique)
        for step in range(max(exchange.counted()), first - 1, -1):
            exchange.uncount(step, stepper.slice_of(step).access.unique)

    def _halt(self, group: Group) -> Result | None:
        """Nothing is left to train, or all are to meet at a step: see to it that the cut there is committed.

        Then part; or return None once there are steps to train.
        """
        stepper, began = self._stepper, monotonic()
        ends = self._barriers.ends()
        self._status.update(state=TrainerState.FINISHING if ends else TrainerState.MEETING)
        stepper.work()
        if self._setup.job.lockstep:
            self._announce(stepper.state.done)
        while stepper.state.done >= self._goal():
            self._barriers.report_halted(self._exchange.applied())
            if self.coordinator is not None and not group.conclude():
                self._lead_on(self.coordinator, monotonic() - began)
            elif self.coordinator is not None and (anchor := self._end(self.coordinator)):
                if ends:
                    self._status.update(result=anchor, state=TrainerState.FINISHED)
                    group.dismiss()
                    # The last word has no room for them.
                    self._status.wait_until_recorded(_RECORDED_S)
                    return self._result(anchor)
                self._barriers.meet_at(anchor)
            group.listen(self._control.poll_interrupts)
            # A shard that came back without the last step cannot take the cut before it has it.
            self._resend_missing()
        self._status.update(met=None)
        return None

    def _result(self, anchor: AnchorRef) -> Result:
        state, status = self._stepper.state, self._status
        evaluation = status.evaluation and replace(status.evaluation, groups=(), rest=None)
        total, figures = self._setup.order.total_samples, state.scores.report_fields()
        return Result(anchor, state.lost, **figures, evaluation=evaluation, best=status.best, total_samples=total)

    def _end(self, coordinator: SaveCoordinator) -> AnchorRef | None:
        """All trainers stand at one step: return its anchor, None as long as it is not committed."""
        state = self._stepper.state
        self._status.update(step=state.reached, samples=state.samples)
        self._announce(state.reached)
        return coordinator.finish(state)

    def _announce(self, cut_step: int) -> None:
        """Tell the shards of a cut, by pings and by what is pushed again."""
        self._stepper.cut_step = cut_step
        self._exchange.announce_cut(cut_step)

    def _lead_on(self, coordinator: SaveCoordinator, since_s: float) -> None:
        """Plan cuts and save for the others, who train on; this trainer has had no step for `since_s`."""
        stepper = self._stepper
        self._announce(coordinator.announce(stepper.state.reached + 1, stepper.pace.trained_s + since_s))
        coordinator.save(stepper.state)
        self._status.update(step=stepper.state.reached, samples=stepper.state.samples)

    def _recorded_anchor(self) -> str:
        return self._status.recorded.anchor

    def _initial_state(self) -> InitialStateLoader:
        return InitialStateLoader(self._setup, self._status, lambda: self._roster)
