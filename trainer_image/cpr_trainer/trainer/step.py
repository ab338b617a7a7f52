"""The steps of training: vectors, forward and backward, all-reduce, dense optimizer, push."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from cpr_trainer.arrays import Ints
from cpr_trainer.embedding.access import Rows
from cpr_trainer.exchange import Exchange
from cpr_trainer.trainer.allreduce.group import NO_STATE, Group
from cpr_trainer.trainer.compute import Computed, ComputeWorkers, compute
from cpr_trainer.trainer.control import ControlSignals, PollInterrupts
from cpr_trainer.trainer.held_out import HeldOutEvaluator
from cpr_trainer.trainer.pace import Pace
from cpr_trainer.trainer.prefetch import Feed, Prefetch, Slice, Vectors, slice_of
from cpr_trainer.trainer.resume import ReportedState, ResumeMemory, TrainerControlBlock
from cpr_trainer.trainer.save_coordinator import SaveCoordinator
from cpr_trainer.trainer.scores import MERGE_STEPS, ScoredSlice
from cpr_trainer.trainer.setup import Setup
from cpr_trainer.trainer.shards import Shards
from cpr_trainer.trainer.state import DenseState
from cpr_trainer.trainer.status import ProgressTimer, StatusPublisher, progress_line
from cpr_trainer.trainer.store_retry import RetryingReader, poll_and_sleep

_LOG = logging.getLogger(__name__)


class Stepper:
    """Trains steps into `state`. `pushed` is the last step handed to the exchange, None before the first.

    With a `control_block` the state is kept for the next process. A step is complete once its push is kept, too, and
    before any part of the push is sent: the next process can send again all that shards may have received.

    A push comes after the step's all-reduce. No rank therefore pushes a step that the most advanced trainer has not
    completed, and pushes that a dead trainer left out can be computed again. If shards merge steps, it comes before the
    all-reduce, which begins once all shards have it, and the commit after: see `shard.steps`.
    """

    def __init__(
        self,
        setup: Setup,
        control: ControlSignals,
        status: StatusPublisher,
        exchange: Exchange,
        control_block: TrainerControlBlock | None = None,
    ) -> None:
        self.state = DenseState(setup.job, setup.order.total_samples, setup.rank)
        self.pushed: int | None = None
        self.cut_step = 0
        self.degraded_samples = 0
        self.shards = Shards(exchange, control, status)
        self.reader = RetryingReader(status, control.poll_interrupts)
        self.pace = Pace()
        self.held_out = HeldOutEvaluator(setup, exchange, self.shards, self.reader)
        self._progress = ProgressTimer(monotonic())
        self._workers = ComputeWorkers(setup.workers.count)
        self._setup = setup
        self._control = control
        self._status = status
        self._exchange = exchange
        self._control_block = control_block
        self._resume_memory: ResumeMemory | None = None

    def resume(self, generation: int) -> bool:
        """Restore the last process's state and report it; return whether there is one of this generation."""
        control_block, state = self._control_block, self.state
        if control_block is None or not control_block.holds(generation):
            return False
        self._resume_memory = ResumeMemory(control_block, state, self._setup.job.shards)
        resumed = self._resume_memory.restore()
        state.before_change = control_block.invalidate
        self.pushed, self.degraded_samples = resumed.pushed, resumed.reported.degraded_samples
        self._exchange.resume(generation, resumed.pushed or 0, resumed.link_states)
        self._status.update(
            step=state.reached,
            samples=state.samples,
            samples_started=control_block.samples_started,
            lost=state.lost,
            evaluation=resumed.reported.evaluation,
            degraded_samples=self.degraded_samples,
            **state.scores.report_fields(),
        )
        _LOG.info("process %d resumes after step %d", control_block.process_number, state.done)
        return True

    def keep(self) -> None:
        """Keep the present state, between two steps, for the next process."""
        if self._resume_memory is not None:
            self._resume_memory.prepare(self._reported())
            self._resume_memory.commit(self.pushed, self._exchange.resume_state())

    def reset(self, generation: int) -> None:
        """Discard the state: a new generation begins."""
        self.state = DenseState(self._setup.job, self._setup.order.total_samples, self._setup.rank)
        if self._control_block is not None:
            self._resume_memory = ResumeMemory(self._control_block, self.state, self._setup.job.shards)
            self._resume_memory.reset(generation)
            self.state.before_change = self._control_block.invalidate
        self.pushed = None
        self.cut_step = 0
        self.degraded_samples = 0
        self.held_out.reset()

    def repair(self, step: int) -> None:
        """Compute this trainer's slice of a past step again and push it; shards drop a push that they have applied."""
        batch_slice = self.slice_of(step, self.reader)
        vectors = Vectors(self._exchange, batch_slice)
        vectors.request_all()
        self._push(batch_slice, self._compute(batch_slice, lambda: self.shards.fetch(vectors)))

    def count(self, last: int, poll_interrupts: PollInterrupts) -> None:
        """Count this rank's row updates up to step `last` by the data, for shards that have answered.

        Raises what `poll_interrupts` raises.
        """
        reader = RetryingReader(self._status, poll_interrupts)
        counted = [step for step in self._exchange.counted() if step >= 0]
        for step in range(min(counted, default=last) + 1, last + 1):
            poll_interrupts()
            self._exchange.count(step, self.slice_of(step, reader).access.unique)

    def settle_last(self, left_s: Callable[[], float], *, leads: bool) -> bool:
        """Commit the last step, after SIGTERM, and wait for acknowledgements; return whether all came in time.

        If the job stops, now or during the wait, this waits for shards on which no process of this rank has counted
        that far, too. The count is in their last saves, which later trainers continue. The leader's state is the job's:
        shards apply its last step, although a lost trainer cannot commit it. Raises RosterChanged.
        """

        def poll_until_end() -> None:
            self._control.poll_roster()
            if left_s() <= 0:
                raise TimeoutError

        exchange, control, done = self._exchange, self._control, self.state.done
        merges = self._setup.job.per_step and done != NO_STATE
        if merges:
            exchange.withdraw(done)
        with suppress(TimeoutError):
            while True:
                stops = control.job_stops
                if merges:
                    exchange.commit(done, self.cut_step, for_all=leads and stops)
                if merges and stops and done and min(exchange.counted()) < done:
                    poll_and_sleep(poll_until_end)
                    self.count(done, poll_until_end)
                elif self.shards.settle_soon() and control.job_stops is stops:
                    return True
                else:
                    poll_until_end()
        return self.shards.settle_soon()

    def slice_of(self, step: int, reader: RetryingReader) -> Slice:
        """Return this trainer's slice of a step."""
        setup = self._setup
        rows = setup.order.indices_of(setup.order.slice_of(step, setup.rank, setup.job.trainers))
        return slice_of(step, reader.read(lambda: setup.dataset.take(rows)), setup.placement)

    def train(self, feed: Feed, group: Group, coordinator: SaveCoordinator | None, goal: Callable[[], int]) -> None:
        """Train up to step `goal()`. Raises what ends a wait, Terminated only between steps or in a wait."""
        job = self._setup.job
        prefetch = Prefetch(feed, self._exchange, job.prefetch, self.state.done, merges=job.per_step)
        self.pace.paused_s += self._take_paused_s()  # before the first step
        while self.state.done < goal() and (vectors := prefetch.take()) is not None:
            self._control.poll_interrupts()
            self.held_out.score(self.state.done, self.state.replica)
            self._step(vectors, prefetch, group, coordinator)

    def start(self, samples: int) -> None:
        """Record that shards may receive pushes of samples up to `samples`; later processes report no fewer."""
        if self._control_block is not None:
            self._control_block.samples_started = samples
        self._status.update(samples_started=samples)

    def record_progress(self) -> None:
        """Record that this process trains, which ends the downtime of the processes before it."""
        if self._control_block is not None:
            self._control_block.record_serving(monotonic())

    def _step(self, vectors: Vectors, prefetch: Prefetch, group: Group, coordinator: SaveCoordinator | None) -> None:
        began, batch_slice, trace = monotonic(), vectors.slice, self._setup.trace
        step, merges = batch_slice.step, self._setup.job.per_step
        self.start(self._setup.samples_at(max(step, self.state.farthest)))
        prefetch.request(step)
        trace.lap("look ahead")

        def fetch() -> Rows:
            trace.lap("bottom")
            arrived = self.shards.fetch(vectors)
            trace.lap("vectors")
            group.announce(step)
            return arrived

        computed = self._compute(batch_slice, fetch)
        trace.lap("compute")
        self._score(step, computed)
        trace.lap("score")
        if merges:
            self._push(batch_slice, computed)
            trace.lap("push")
            self._keep_parameters()  # before the sum, because shards receive the push meanwhile
            trace.lap("keep")
        announced = coordinator.announce(self.state.reached + 1, self.pace.trained_s) if coordinator else 0
        with self._status.waiting(self._control.poll_interrupts) as poll_interrupts:
            self.cut_step = group.go(announced, poll_interrupts).cut_step
        trace.lap("go")
        if merges:
            self.shards.await_received(step)
            trace.lap("received")
        self._reduce(step, group)
        trace.lap("reduce")
        if merges:
            self.keep()
            self._exchange.commit(step, self.cut_step)
        else:
            self._push(batch_slice, computed)
        if self._exchange.was_skipped(step):
            self.degraded_samples += self._setup.batch_size(step)
        trace.lap("push")
        prefetch.after_step()
        trace.lap("ask late")
        if coordinator is not None:
            coordinator.save(self.state)
        self._report(began, coordinator)
        trace.end(step)

    def _score(self, step: int, computed: Computed) -> None:
        setup = self._setup
        self.state.scores.add(
            ScoredSlice(
                step=step,
                trainers=setup.job.trainers,
                first_sample=setup.order.slice_of(step, setup.rank, setup.job.trainers).start,
                logits=computed.logits,
                labels=computed.labels,
                loss_share=computed.loss_share,
                weights=computed.weights,
            )
        )

    def _compute(self, batch_slice: Slice, fetch: Callable[[], Rows]) -> Computed:
        setup, step = self._setup, batch_slice.step
        names, size = (setup.job.data.seed, setup.rank, step), setup.batch_size(step)
        return compute(self.state.replica, batch_slice.batch, batch_slice.access, fetch, size, self._workers, names)

    def _reduce(self, step: int, group: Group) -> None:
        """Complete the step on the dense side: sum over trainers, then the optimizer."""
        assert step == self.state.done + 1, f"step {step} follows step {self.state.done}"
        replica, scores = self.state.replica, self.state.scores
        ended_pin = self._ended_pin(step)
        merges = step % MERGE_STEPS == 0 or step in {self.cut_step, self._setup.last_step} or ended_pin > 0
        to_merge = scores.to_merge() if merges else ()
        held_out = self.held_out.counters(step)
        # SIGTERM does not interrupt this wait: the other trainers would stay inside the collective.
        with self._status.waiting(self._control.poll_roster) as poll_interrupts:
            group.sum((replica.gradients, *to_merge, *held_out, *self.state.buffers_to_sum()), poll_interrupts)
        if not self._setup.job.per_step:
            self._keep_parameters()
        replica.step(step)
        if to_merge:
            scores.merge(*to_merge)
        if ended_pin:
            scores.end_segment(step, ended_pin, self._setup.order.batch_size)
        if merges:
            self._status.update(**scores.report_fields())
        if held_out:
            self._status.update(evaluation=self.held_out.scores(step - 1, held_out, replica))
        self.state.done = step

    def _keep_parameters(self) -> None:
        """Keep the parameters before the step changes them. A push has committed the parameters kept last."""
        if self._resume_memory is not None:
            self._resume_memory.begin_step()

    def _ended_pin(self, step: int) -> int:
        """Return the number of the last pin that ends in a step, if segments are scored there, else 0.

        It is the same on all trainers: the step merges.
        """
        followed = self._setup.followed
        if followed is None or not self.state.scores.may_end_segment(step):
            return 0
        return followed.order.ended_pin(step)

    def _push(self, batch_slice: Slice, computed: Computed) -> None:
        done = self.state.done + self._setup.job.per_step
        assert batch_slice.step <= done, "a push comes after its step's all-reduce, or of merged steps just before"
        pushed, resume_memory = max(batch_slice.step, self.pushed or 0), self._resume_memory
        if resume_memory is not None:
            resume_memory.prepare(self._reported())

        def keep(link_states: Ints | None) -> None:
            if resume_memory is not None:
                resume_memory.commit(pushed, link_states)

        self.shards.push(batch_slice.step, batch_slice.access.unique, computed.row_gradients, self.cut_step, keep)
        self.pushed = pushed

    def _reported(self) -> ReportedState:
        state = self.state
        return ReportedState(
            state.lost,
            self._status.updated.evaluation,
            state.scores.loss,
            self.degraded_samples,
            state.early_stop_state,
        )

    def _take_paused_s(self) -> float:
        """Return the seconds since the last call that were lost to waits, or to a suspended process."""
        return max(self._status.take_waited_s(), self._control.pause_detector.take_paused_s())

    def _report(self, began: float, coordinator: SaveCoordinator | None) -> None:
        self.record_progress()
        pace, saving = self.pace, coordinator is not None and coordinator.take_saving()
        delay_s = pace.note(monotonic() - began, self._take_paused_s(), saving=saving)
        if coordinator is not None:
            coordinator.cost.note(delay_s)
        self._status.pause_after_s = pace.pause_after_s
        usual_s = pace.usual_step_s
        self._status.update(
            step=self.state.reached,
            samples=self.state.samples,
            sync_gap=None if self.state.averaging is None else self.state.averaging.sync_gap,
            samples_per_s=self._setup.order.batch_size / usual_s if usual_s else None,
            paused_s=pace.paused_s,
            degraded_samples=self.degraded_samples,
        )
        if self._progress.due(monotonic()) or self.state.done == self._setup.last_step:
            _LOG.info("%s", progress_line(self._status.report()))
