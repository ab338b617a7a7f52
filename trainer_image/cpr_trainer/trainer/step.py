"""One step at a time: vectors, forward and backward, all-reduce, dense optimizer, push."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic

from cpr_trainer.arrays import Ints
from cpr_trainer.embedding.access import Rows
from cpr_trainer.exchange import Exchange
from cpr_trainer.trainer.allreduce.group import Group
from cpr_trainer.trainer.compute import Computed, compute
from cpr_trainer.trainer.control import Watch
from cpr_trainer.trainer.crew import Crew
from cpr_trainer.trainer.held_out import HeldOut
from cpr_trainer.trainer.pace import Pace
from cpr_trainer.trainer.page import Page
from cpr_trainer.trainer.prefetch import Feed, Prefetch, Slice, Vectors, slice_of
from cpr_trainer.trainer.progress import Minute, line
from cpr_trainer.trainer.resume import Kept, Told
from cpr_trainer.trainer.save_coordinator import Leading
from cpr_trainer.trainer.scores import MERGE_STEPS, ScoredSlice
from cpr_trainer.trainer.setup import Setup
from cpr_trainer.trainer.shards import Shards
from cpr_trainer.trainer.state import DenseState
from cpr_trainer.trainer.status import Board
from cpr_trainer.trainer.store_retry import Reading

_LOG = logging.getLogger(__name__)


class Stepper:
    """Trains steps into `state`. `pushed` is the last step handed to the exchange, None before the first.

    With a `page` all that a next process needs is kept. A step is complete once its push is kept, too, and before
    anything of that is sent: so whatever a shard was sent, the next process can send again.

    A push comes after the step's all-reduce: so no rank ever pushes a step that the most advanced trainer has not
    completed, and what a trainer that died between two pushes leaves open can be computed again.
    """

    def __init__(self, setup: Setup, watch: Watch, board: Board, exchange: Exchange, page: Page | None = None) -> None:
        self.state = DenseState(setup.job, setup.order.total_samples, setup.rank)
        self.pushed: int | None = None
        self.cut_step = 0
        self.degraded_samples = 0
        self.shards = Shards(exchange, watch, board)
        self.reading = Reading(board, watch.poll_interrupts)
        self.pace = Pace()
        self.held_out = HeldOut(setup, exchange, self.shards, self.reading)
        self._minute = Minute(monotonic())
        self._crew = Crew(setup.workers.count)
        self._setup = setup
        self._watch = watch
        self._board = board
        self._exchange = exchange
        self._page = page
        self._kept: Kept | None = None

    def go_on(self, generation: int) -> bool:
        """Go on where the last process stood, and tell so; whether it left anything of this generation."""
        page, state = self._page, self.state
        if page is None or not page.keeps(generation):
            return False
        self._kept = Kept(page, state, self._setup.job.shards)
        left = self._kept.go_on()
        state.before_change = page.forget
        self.pushed, self.degraded_samples = left.pushed, left.told.degraded_samples
        self._exchange.inherit(generation, left.pushed or 0, left.standing)
        self._board.set(
            step=state.reached,
            samples=state.samples,
            samples_started=page.samples_started,
            lost=state.lost,
            evaluation=left.told.evaluation,
            degraded_samples=self.degraded_samples,
            **state.scores.figures(),
        )
        _LOG.info("life %d goes on after step %d", page.process_number, state.done)
        return True

    def keep(self) -> None:
        """Keep the state as it is between two steps."""
        if self._kept is not None:
            self._kept.prepare(self._told())
            self._kept.commit(self.pushed, self._exchange.standing())

    def start_over(self, generation: int) -> None:
        """Forget the state: a new generation begins."""
        self.state = DenseState(self._setup.job, self._setup.order.total_samples, self._setup.rank)
        if self._page is not None:
            self._kept = Kept(self._page, self.state, self._setup.job.shards)
            self._kept.begin_anew(generation)
            self.state.before_change = self._page.forget
        self.pushed = None
        self.cut_step = 0
        self.degraded_samples = 0
        self.held_out.forget()

    def repair(self, step: int) -> None:
        """Compute this trainer's slice of a past step again and push it; shards that have it drop it."""
        wanted = self.slice_of(step)
        vectors = Vectors(self._exchange, wanted)
        vectors.ask_again()
        self._push(wanted, self._compute(wanted, lambda: self.shards.fetch(vectors)))

    def slice_of(self, step: int) -> Slice:
        """Return this trainer's slice of any step."""
        setup = self._setup
        rows = setup.order.indices_of(setup.order.slice_of(step, setup.rank, setup.job.trainers))
        return slice_of(step, self.reading.read(lambda: setup.dataset.take(rows)), setup.placement)

    def train(self, feed: Feed, group: Group, leading: Leading | None, goal: Callable[[], int]) -> None:
        """Train up to step `goal()`. Raises what ends a wait, Terminated only between steps or in a wait."""
        prefetch = Prefetch(feed, self._exchange, self._setup.job.prefetch)
        self.pace.paused_s += self._take_paused_s()  # before the first step
        while self.state.done < goal() and (vectors := prefetch.take()) is not None:
            self._watch.poll_interrupts()
            self.held_out.score(self.state.done, self.state.replica)
            self._step(vectors, prefetch, group, leading)

    def _step(self, vectors: Vectors, prefetch: Prefetch, group: Group, leading: Leading | None) -> None:
        """Train the slice of `vectors`."""
        began, wanted, trace = monotonic(), vectors.slice, self._setup.trace
        step = wanted.step
        self.start(self._setup.samples_at(max(step, self.state.farthest)))
        prefetch.ask()
        trace.lap("look ahead")

        def fetch() -> Rows:
            trace.lap("bottom")
            arrived = self.shards.fetch(vectors)
            trace.lap("vectors")
            group.announce(step)
            return arrived

        computed = self._compute(wanted, fetch)
        trace.lap("compute")
        self._score(step, computed)
        trace.lap("score")
        announced = leading.announce(self.state.reached + 1, self.pace.trained_s) if leading else 0
        with self._board.waiting(self._watch.poll_interrupts) as poll_interrupts:
            self.cut_step = group.go(announced, poll_interrupts).cut_step
        trace.lap("go")
        self._reduce(step, group)
        trace.lap("reduce")
        self._push(wanted, computed)
        if self._exchange.spared(step):
            self.degraded_samples += self._setup.batch_size(step)
        trace.lap("push")
        prefetch.pushed()
        trace.lap("ask late")
        if leading is not None:
            leading.save(self.state)
        self._tell(began, leading)
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
            )
        )

    def _compute(self, wanted: Slice, fetch: Callable[[], Rows]) -> Computed:
        size = self._setup.batch_size(wanted.step)
        return compute(self.state.replica, wanted.batch, wanted.access, fetch, size, self._crew)

    def _reduce(self, step: int, group: Group) -> None:
        """Complete the step on the dense side: sum over trainers, then the optimizer."""
        replica, scores = self.state.replica, self.state.scores
        show = step % MERGE_STEPS == 0 or step in {self.cut_step, self._setup.last_step}
        to_merge = scores.to_merge() if show else ()
        held_out = self.held_out.counters(step)
        # SIGTERM does not interrupt this wait: the others would be left inside the collective.
        with self._board.waiting(self._watch.poll_roster) as poll_interrupts:
            group.sum((replica.gradients, *to_merge, *held_out), poll_interrupts)
        if self._kept is not None:
            self._kept.begin_step()
        replica.step(step)
        if to_merge:
            scores.merge(*to_merge)
        if show:
            self._board.set(**scores.figures())
        if held_out:
            self._board.set(evaluation=self.held_out.scores(step - 1, held_out, replica))
        self.state.done = step

    def _push(self, wanted: Slice, computed: Computed) -> None:
        pushed, kept = max(wanted.step, self.pushed or 0), self._kept
        if kept is not None:
            kept.prepare(self._told())

        def keep(standing: Ints | None) -> None:
            if kept is not None:
                kept.commit(pushed, standing)

        self.shards.push(wanted.step, wanted.access.unique, computed.row_gradients, self.cut_step, keep)
        self.pushed = pushed

    def start(self, samples: int) -> None:
        """Tell that shards may be sent what belongs to these samples: no process after this one will tell less."""
        if self._page is not None:
            self._page.samples_started = samples
        self._board.set(samples_started=samples)

    def _told(self) -> Told:
        state = self.state
        return Told(state.lost, self._board.evaluation, state.scores.loss, self.degraded_samples, state.verdict)

    def _take_paused_s(self) -> float:
        """Return the seconds since the last call in which nothing was trained: waits, or the process stood still."""
        return max(self._board.take_waited_s(), self._watch.standstill.take_s())

    def work(self) -> None:
        """Note that this process does what it is for."""
        if self._page is not None:
            self._page.record_serving(monotonic())

    def _tell(self, began: float, leading: Leading | None) -> None:
        self.work()
        pace, saving = self.pace, leading is not None and leading.take_saving()
        delay_s = pace.note(monotonic() - began, self._take_paused_s(), saving=saving)
        if leading is not None:
            leading.cost.note(delay_s)
        self._board.patience_s = pace.patience_s
        usual_s = pace.usual_step_s
        self._board.set(
            step=self.state.reached,
            samples=self.state.samples,
            sync_gap=None if self.state.desk is None else self.state.desk.sync_gap,
            samples_per_s=self._setup.order.batch_size / usual_s if usual_s else None,
            paused_s=pace.paused_s,
            degraded_samples=self.degraded_samples,
        )
        if self._minute.due(monotonic()) or self.state.done == self._setup.last_step:
            _LOG.info("%s", line(self._board.report()))
