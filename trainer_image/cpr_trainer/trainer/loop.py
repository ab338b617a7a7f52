"""A trainer's loop: join the group, repair missing pushes, train step after step, finish.

An interruption ends in one of three places: `run` continues with the newest roster (another group or generation),
`_train_in_group` joins the same group again (a lost peer), or a wait continues (an unavailable shard).
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from time import monotonic, sleep
from typing import Any

from cpr_contract.reports import Result, SaveRef, TrainerState
from cpr_contract.roster import AnchorRef, TrainerRoster
from cpr_trainer.checkpoint.anchor.committer import write_dense
from cpr_trainer.data.loader import Loader
from cpr_trainer.exchange import WINDOW, Exchange
from cpr_trainer.runtime import backoff, retry
from cpr_trainer.store import StoreError
from cpr_trainer.trainer.allreduce.group import NO_STATE, Group, missing_steps
from cpr_trainer.trainer.barriers import Barriers
from cpr_trainer.trainer.control import POLL_INTERVAL_S, ControlSignals, GroupBroken, Interruption, RosterChanged
from cpr_trainer.trainer.initial_state import InitialStateLoader
from cpr_trainer.trainer.known_data import KnownData
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
#: Before a trainer ends, it waits for unavailable shards, because no other process has the pushes kept for them. There
#: must be time for a cut and a dense save afterwards: the grace is 30 s at least, and twice that if the job stops.
_REPLAY_S, _REPLAY_STOP_S = 15.0, 30.0
_FLUSH_ATTEMPTS = 5
#: A job that stops waits for its last anchor for a multiple of the time that the anchor before took: for the operator's
#: grace (`cpr_operator.desired.pod.grace_s`), less the time for other work.
_CUT_COMMITS = 2
_LEAST_CUT_S = 15.0
#: Time that a leader waits at the end until the operator has recorded the scores that only a report contains.
_RECORDED_S = 60.0

#: Makes a group for a roster, and for the state of this trainer.
MakeGroup = Callable[[TrainerRoster, DenseState], Group]


class Loop:
    """One trainer's training, from its first roster to the end of the job.

    `make_group` returns the group of a roster. `group`, `coordinator` and `known_data`, for reports, are the present
    group, the leader's coordinator of saves (None on followers), and the data of a job that follows it. With a
    `control_block` training resumes where the last process stopped, if that was in the roster's generation.
    """

    def __init__(  # noqa: PLR0913, PLR0917 -- the trainer, its shards and its group
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
        self.known_data: KnownData | None = None
        if setup.followed is not None:
            self.known_data = KnownData(setup, exchange, status, control.poll_interrupts)
        self._barriers = Barriers(setup, self._stepper, status, control.poll_interrupts)
        self._initial_state = InitialStateLoader(setup, status, lambda: self._roster)
        self._roster = control.adopt()
        generation = self._roster.counters.generation
        self._resumes = self._stepper.resume(generation)
        self._generation = generation if self._resumes else 0
        control.on_roster = self._follow

    def run(self) -> Result | None:
        """Train to the end; return the final anchor and scores on the leader.

        Raises Terminated (call `flush` then), Superseded, Finished (on a follower), and the errors that end a trainer.
        """
        while True:
            self._begin(self._control.adopt())
            try:
                return self._train_in_group(self._roster)
            except RosterChanged as changed:
                _LOG.info("%s", changed)

    def flush(self) -> SaveRef | AnchorRef | None:
        """After Terminated: wait until shards have acknowledged; those that come back receive the pushes kept for them.

        On the leader then save the dense state and return the save. If the job stops, it is the anchor of the step at
        which all trainers wait, if that is committed in time: any later trainers can start from it. Without lockstep
        there is such a step only at a barrier. Raises StoreError if nothing can be saved.
        """
        state, coordinator, began = self._stepper.state, self.coordinator, monotonic()

        def left_s() -> float:
            timeout_s = _REPLAY_STOP_S if self._control.job_stops else _REPLAY_S
            return began + (timeout_s if self._setup.job.replay.enabled else _SETTLE_S) - monotonic()

        settled = False
        with suppress(RosterChanged):  # another group or generation does not need these pushes
            settled = self._stepper.settle_last(left_s, leads=coordinator is not None)
        if coordinator is None or state.done == NO_STATE:
            return None
        at_same_step = self._setup.job.lockstep or self._status.updated.met is not None
        can_cut = settled and state.done and self._control.job_stops and at_same_step
        anchor = self._last_cut(coordinator) if can_cut else None
        coordinator.close()
        return anchor or self._save_dense(coordinator)

    def close(self) -> None:
        """End the committer after its present work."""
        if self.known_data is not None:
            self.known_data.close()
        if self.coordinator is not None:
            self.coordinator.close()

    def _last_cut(self, coordinator: SaveCoordinator) -> AnchorRef | None:
        """Return the anchor of the last step; None after a time-out.

        A leader without pushes has waited for no shard yet: one may still apply the last step, or be unavailable.
        """
        state, began = self._stepper.state, monotonic()
        self._exchange.announce_cut(state.done)
        timeout_s = max(_LEAST_CUT_S, _CUT_COMMITS * (coordinator.committer.state.commit_s or 0.0))
        while (anchor := coordinator.finish(state)) is None and monotonic() - began < timeout_s:
            self._control.heartbeat()
            sleep(POLL_INTERVAL_S)
        return anchor

    def _save_dense(self, coordinator: SaveCoordinator) -> SaveRef | None:
        """Save the dense state alone. Raises StoreError."""
        copy = self._setup.dense_copy(self._stepper.state, self._roster)

        def pause(_error: StoreError, delay_s: float) -> None:
            _LOG.warning("the dense state is not saved yet", exc_info=True)
            sleep(delay_s)

        return retry(
            lambda: write_dense(self._setup.store, copy) or coordinator.committer.state.dense_save,
            StoreError,
            islice(backoff(random.Random(), first_s=0.2), _FLUSH_ATTEMPTS - 1),
            pause,
        )

    def _follow(self, roster: TrainerRoster) -> None:
        """Continue under a newer roster of the same group and generation."""
        self._adopt(roster)
        if self.group is not None:
            self.group.follow(roster)
        self._status.update(counters=roster.counters)

    def _adopt(self, roster: TrainerRoster) -> None:
        _LOG.info("follows roster %d", roster.counters.roster)
        self._roster = roster
        self._exchange.follow(roster)

    def _begin(self, roster: TrainerRoster) -> None:
        """Begin in the group and generation of a roster.

        The report changes at once, so that it never has values of the old generation under the new counters.
        """
        is_new = roster.counters.generation != self._generation
        before = self.coordinator
        self.group = None
        if is_new:
            self.coordinator = None
        self._adopt(roster)
        joining: dict[str, Any] = {"counters": roster.counters, "state": TrainerState.JOINING, "met": None}
        if not is_new:
            self._status.update(**joining)
            return
        initial: dict[str, Any] = {"step": 0, "samples": 0, "samples_started": 0, "lost": (), "dense_save": None}
        self._status.update(**joining, **initial, degraded_samples=0, evaluation=None, best=None, segment=None)
        self._generation = roster.counters.generation
        self._barriers.reset()
        if before is not None:
            before.close()
        self._resumes = False
        self._stepper.reset(roster.counters.generation)

    def _train_in_group(self, roster: TrainerRoster) -> Result | None:
        """Train in the group of `roster` until the job is done."""
        group = self.group = self._make_group(roster, self._stepper.state)
        self._stepper.shards.group = group if self._setup.job.per_step else None
        try:
            while True:
                try:
                    self._status.update(state=TrainerState.JOINING)
                    self._lead_or_follow(roster)
                    self._join(group)
                    if self.coordinator is not None:
                        self.coordinator.on_group_formed(self._stepper.state)
                    while True:
                        self._train(group)
                        if self._barriers.due():
                            self._barriers.wait(group, self.coordinator, self._resend_missing, self._announce)
                        elif (result := self._wait_at_end(group)) is not None:
                            return result
                except GroupBroken as broken:
                    _LOG.info("the group is broken: %s", broken)
        finally:
            group.leave()

    def _lead_or_follow(self, roster: TrainerRoster) -> None:
        """Start or stop to coordinate saves, as the roster requires."""
        leads = roster.leader == roster.index
        if self.coordinator is not None and not leads:
            self.coordinator.close()
            self.coordinator = None
        if leads and self.coordinator is None:
            anchors = retry_store_errors(self._initial_state.known_anchors, self._status, self._control.poll_interrupts)
            self.coordinator = SaveCoordinator(
                self._setup, self._exchange, lambda: self._roster, lambda: self._status.recorded.anchor, anchors
            )
        if self.known_data is not None and self.coordinator is not None:
            self.known_data.look(self.coordinator.committer)
        elif self.known_data is not None:
            self.known_data.close()

    def _join(self, group: Group) -> None:
        """Join the group: agree on a dense state with all others, and have every push up to it sent."""
        poll_interrupts, state = self._control.poll_interrupts, self._stepper.state
        survived = group.join(state, lambda: self._initial_state.provide(state, poll_interrupts), poll_interrupts)
        assert state.done != NO_STATE, "members of a group have a dense state"
        if self.known_data is not None:
            self.known_data.on_group_formed(group)
        if not survived and state.reached < self._setup.last_step:
            try:
                self._stepper.shards.await_ready()
                if self._setup.job.lockstep:
                    # Continue after the highest step that any shard applied of any rank.
                    group.announce(max(self._exchange.applied()))
                    with self._status.waiting(poll_interrupts) as poll_and_report:
                        reached = group.go(0, poll_and_report).step
                    state.skip_to(max(reached, state.done))
                else:
                    # Continue with the first step of this rank that any shard lacks. Shards drop pushes that they have
                    # applied, so no push is lost or applied twice.
                    state.done = min(state.done, *self._exchange.applied())
            except Interruption:
                state.done = NO_STATE  # A loaded state counts only once all have agreed on its step.
                raise
        # A lost trainer may have completed, and pushed, one step more than all members.
        started = self._setup.samples_at(min(state.farthest + 1, self._setup.last_step))
        self._stepper.start(started)
        self._status.update(step=state.reached, samples=state.samples, lost=state.lost)
        self._status.update(**state.scores.report_fields())
        self._stepper.keep()
        if self._setup.job.per_step:
            self._exchange.commit(state.done, self._stepper.cut_step)
        self._barriers.on_group_formed()
        self._barriers.report_best(self.coordinator)
        if self.coordinator is not None:
            self.coordinator.save(state)

    def _goal(self) -> int:
        """The step of the next barrier; if the roster requires one, the present step until it is announced."""
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
        split = setup.job.prefetch == 1 and not setup.job.per_step
        with Feed(loader, setup.placement, stepper.reader.wait, split=split) as feed:
            stepper.train(feed, group, self.coordinator, self._goal)

    def _repair(self, pushed: int | None) -> None:
        """Push the steps up to `done` that this rank has not pushed to every shard.

        First set the count of this rank's row updates on every shard to that before these steps. Steps that a shard
        lost and no trainer pushes again are counted by the data. There are such steps only if this trainer and that
        shard were replaced together. Shards that merge steps have all pushes up to `done`, or have lost them for good:
        then `done` is committed.
        """
        stepper, exchange, done = self._stepper, self._exchange, self._stepper.state.done
        missing = range(done + 1, done + 1)
        if not self._setup.job.per_step:
            missing = missing_steps(done, pushed, exchange.applied(), WINDOW)
        stepper.count(missing.start - 1, self._control.poll_interrupts)
        for step in range(max(exchange.counted()), missing.start - 1, -1):
            exchange.uncount(step, stepper.slice_of(step, stepper.reader).access.unique)
        for step in missing:
            _LOG.info("computing step %d again", step)
            stepper.repair(step)
        if self._setup.job.per_step:
            exchange.commit(done, stepper.cut_step)
        stepper.pushed = max(stepper.pushed or 0, done)

    def _resend_missing(self) -> bool:
        """Send shards that came back the pushes that they lack up to here; return whether they have them all."""
        if self._exchange.unavailable() or not self._stepper.shards.settle_soon():
            return False
        self._repair(pushed=None)
        return min(self._exchange.applied()) >= self._stepper.state.done

    def _wait_at_end(self, group: Group) -> Result | None:
        """Wait for the anchor of the last step, or of a barrier that the roster requires, and then for more data.

        Returns the result at the end of the job, None once there are steps to train.
        """
        stepper, began, known_data = self._stepper, monotonic(), self.known_data
        ends = self._barriers.ends()
        idles = known_data is not None and not ends
        waiting = TrainerState.TRAINING if idles else TrainerState.MEETING
        self._status.update(state=TrainerState.FINISHING if ends else waiting)
        stepper.record_progress()
        if self._setup.job.lockstep:
            self._announce(stepper.state.done)
        while stepper.state.done >= self._goal():
            anchor = None
            self._barriers.report_halted(self._exchange.applied())
            if self.coordinator is not None and not group.conclude():
                self._coordinate_others(self.coordinator, monotonic() - began)
            elif self.coordinator is not None and (anchor := self._anchor_of_all(self.coordinator)):
                if ends:
                    self._status.update(result=anchor, state=TrainerState.FINISHED)
                    group.dismiss()
                    # The termination message is too short for the scores by group.
                    self._status.wait_until_recorded(_RECORDED_S)
                    return self._result(anchor)
                if not idles:
                    self._barriers.report_met(anchor)
            is_saved = anchor is not None or not stepper.state.done
            if idles and known_data is not None and known_data.grows(group, is_saved=is_saved):
                return None
            group.listen(self._control.poll_interrupts)
            # A shard that came back without the last step must receive it before it can cut.
            self._resend_missing()
        self._status.update(met=None)
        return None

    def _result(self, anchor: AnchorRef) -> Result:
        state, report = self._stepper.state, self._status.report()
        evaluation = report.evaluation and replace(report.evaluation, groups=(), rest=None)
        total, voids = self._setup.order.total_samples, report.data.voids if report.data else 0
        result = Result(anchor, state.lost, **state.scores.report_fields(), total_samples=total, voids=voids)
        return replace(result, evaluation=evaluation, best=report.best)

    def _anchor_of_all(self, coordinator: SaveCoordinator) -> AnchorRef | None:
        """Return the anchor of the step at which all trainers wait, None until it is committed."""
        state = self._stepper.state
        self._status.update(step=state.reached, samples=state.samples)
        self._announce(state.reached)
        return coordinator.finish(state)

    def _announce(self, cut_step: int) -> None:
        """Announce a cut to the shards, by pings and by pushes that are sent again."""
        self._stepper.cut_step = cut_step
        self._exchange.announce_cut(cut_step)

    def _coordinate_others(self, coordinator: SaveCoordinator, since_s: float) -> None:
        """Coordinate saves while the others train; this trainer has waited for `since_s`."""
        stepper = self._stepper
        self._announce(coordinator.announce(stepper.state.reached + 1, stepper.pace.trained_s + since_s))
        coordinator.save(stepper.state)
        self._status.update(step=stepper.state.reached, samples=stepper.state.samples)
