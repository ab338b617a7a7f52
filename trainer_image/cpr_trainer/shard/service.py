"""Answers lookups, pushes and pings of trainers, and decides when the rows are saved. No sockets, no store.

One thread calls everything here, so pushes are applied one after another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any, Protocol, assert_never

from cpr_contract.reports import SaveRef
from cpr_contract.roster import Counters
from cpr_contract.spec import JobSpec, samples_at, steps_in
from cpr_trainer.arrays import Ints
from cpr_trainer.checkpoint.write.save import Mark
from cpr_trainer.embedding.arena import Arena
from cpr_trainer.embedding.bfloat16 import converted
from cpr_trainer.embedding.dynamic.rows import dynamic_rows
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.exchange.encoding import Encoding
from cpr_trainer.exchange.frames import Frame, FrameError, Header, Operation
from cpr_trainer.runtime import Trace
from cpr_trainer.shard.frame_rows import FrameRows
from cpr_trainer.shard.state import Admission, Progress, admit_push, after_push, order_of
from cpr_trainer.shard.status import Metrics


def answer_for(theirs: int, ours: int | None) -> Operation:
    """Return PONG if frames of generation `theirs` are served while `ours` is, STALE or NOT_READY if not.

    Their sender has missed a rollback if it is STALE. `ours` is None while nothing is served.
    """
    if ours is None or theirs > ours:
        return Operation.NOT_READY
    return Operation.STALE if theirs < ours else Operation.PONG


class Client(Protocol):
    """A trainer's connection, as the service needs it. `backlog` has frames that wait behind a cut."""

    backlog: deque[Frame]

    @property
    def rank(self) -> int:
        """The trainer's rank."""

    def send(self, header: Header, *payload: Any) -> None:
        """Send a frame; never blocks, never raises."""

    def refuse(self, why: str) -> None:
        """Send why the connection is closed, and close it once this frame is handled."""


class Service:
    """Serves one shard. `progress` is None while it does not.

    Callbacks: `on_cut` when the rows are to be saved, `on_change` with the slots (int64 [k]) that a push has changed,
    `before_change` with those that it is about to change, `on_serving` when serving starts or stops, `persist` when the
    progress has changed and no acknowledgement was sent yet. `push_waits`: a push waits until a save in progress has
    read on; call `retry` soon.

    Other parts of the shard keep these up to date, which go into every answer: the counters, the newest save, the last
    step of each rank in it (`saved_steps`, empty for none), the last cut that was given up (0: none), and the last step
    that parity holds of every rank (`protected_step`; -1: none, or not of all rows).
    """

    def __init__(self, job: JobSpec, placement: Placement, index: int, arena: Arena, metrics: Metrics) -> None:
        self.arena = arena
        self.encoding = Encoding.of(job)
        self.dynamic = dynamic_rows(job, placement, index, arena.segments)
        self.frame_rows = FrameRows(job, placement, index, arena, self.dynamic)
        self.counters = Counters(roster=0, group=0, generation=0)
        self.newest_save: SaveRef | None = None
        self.saved_steps: tuple[int, ...] = ()
        self.protected_step = -1
        self.protected_samples: int | None = None
        self.given_up_step = 0
        self.store_full = False  # for the save in progress
        self.progress: Progress | None = None
        self.on_cut: Callable[[], None] = lambda: None
        self.on_change: Callable[[Ints], None] = lambda _slots: None
        self.before_change: Callable[[Ints], None] = lambda _slots: None
        self.on_serving: Callable[[], None] = lambda: None
        self.persist: Callable[[], None] = lambda: None
        self.process_number = 1
        self.trace = Trace(None)
        self.metrics = metrics
        self.push_waits = False
        self._job = job
        self._clients: list[Client] = []
        self._backlogs_changed = False

    def start(self, progress: Progress) -> None:
        """Serve from here on, and notify all clients. A save, parity or an earlier process has written the rows."""
        self.progress = progress
        for band in self.dynamic:
            band.reload()
        self.on_serving()
        self.answer_all()

    def resume(self, progress: Progress, pushes: Sequence[Header]) -> None:
        """Continue after an earlier server. Its last `pushes` are in the rows; unless empty, not in the progress."""
        for push in pushes:
            progress.total_samples = push.total_samples
            self._account(progress, push)
        self.start(progress)
        self._cut_if_due(progress)

    def stop(self) -> None:
        """Serve nothing from here on."""
        self.progress = None
        self.on_serving()
        for client in self._clients:
            client.backlog.clear()
            client.send(self._header(Operation.NOT_READY, client.rank))

    def answer_all(self) -> None:
        """Send all clients the present state, without a ping; nothing while no rows are served."""
        if self.progress is not None:
            for client in self._clients:
                client.send(self.answer(client.rank, self.progress.generation))

    def joined(self, client: Client) -> None:
        """Add an authenticated trainer."""
        self._clients.append(client)
        if self.progress is not None:
            self.progress.replay_barrier = self.progress.replay_barrier.joined(client.rank)
        client.send(self._header(Operation.WELCOME, client.rank, count=self.process_number))
        client.send(self.answer(client.rank, self.counters.generation))

    def left(self, client: Client) -> None:
        """Remove a trainer's connection with its backlog: the trainer sends those frames again."""
        if client in self._clients:
            self._clients.remove(client)

    def on_frame(self, client: Client, frame: Frame) -> None:
        """Handle one frame; a trainer that violates the protocol is refused."""
        header = frame.header
        if header.rank != client.rank:
            client.refuse(f"rank {header.rank} on the connection of rank {client.rank}")
            return
        self._note(header)
        match header.operation:
            case Operation.PING:
                self._announce_replay(header)
                client.send(self.answer(client.rank, header.generation))
            case Operation.COMMIT:
                self._commit(client, header)
            case Operation.LOOKUP | Operation.PUSH:
                client.backlog.append(frame)
                self._handle_backlog(client)
                if client.backlog and client.backlog[-1] is frame:
                    client.backlog[-1] = frame.detached()
                # Another rank's push may wait for this one.
                self._backlogs_changed |= self.progress is not None and not self.progress.replay_barrier.open
            case _:
                client.refuse(f"a trainer does not send {header.operation.name}")
        self._handle_backlogs()

    def retry(self) -> None:
        """Handle requests that wait until a save has read further."""
        if self.push_waits:
            self.push_waits, self._backlogs_changed = False, True
            self._handle_backlogs()

    def answer(self, rank: int, generation: int) -> Header:
        """Return the answer to a trainer's ping of a generation: whether it is served."""
        return self._header(answer_for(generation, None if self.progress is None else self.progress.generation), rank)

    def mark(self, progress: Progress) -> Mark:
        """Return what a save of the rows would hold now."""
        samples = samples_at(progress.step, self._job.data.batch_size, progress.total_samples)
        lost = progress.losses.so_far(order_of(progress.total_samples, self._job.data.batch_size))
        return Mark(
            progress.generation,
            progress.step,
            samples,
            progress.applied,
            lost,
            replace(progress.row_updates, counted=progress.losses.counted(progress.applied)),
            last=samples == progress.total_samples,
            at_barrier=progress.cuts.at_barrier,
        )

    def _note(self, header: Header) -> None:
        """Note what every frame of a trainer carries: the size of the job, and the next cut."""
        progress = self.progress
        if progress is None or header.generation != progress.generation:
            return
        progress.total_samples = header.total_samples
        cuts = progress.cuts.announced(header.cut_step, progress.applied)
        if cuts != progress.cuts:
            # A later cut may release pushes that an earlier one held.
            progress.cuts, self._backlogs_changed = cuts, True
            self._cut_if_due(progress)

    def _announce_replay(self, header: Header) -> None:
        progress = self.progress
        if progress is not None and header.generation == progress.generation:
            progress.replay_barrier = progress.replay_barrier.announce(header.rank, header.step)
            self._open_barrier_if_replayed(progress)

    def _open_barrier_if_replayed(self, progress: Progress) -> None:
        """Answer the waiting lookups once all ranks have pushed again what they keep."""
        if progress.replay_barrier.open:
            return
        progress.replay_barrier, self._backlogs_changed = progress.replay_barrier.after(progress.applied), True
        if progress.replay_barrier.open and progress.replay_began is not None:
            progress.replay_s = monotonic() - progress.replay_began

    def _handle_backlogs(self) -> None:
        """Handle requests that no longer have to wait, until none is left."""
        while self._backlogs_changed:
            self._backlogs_changed = False
            for client in tuple(self._clients):
                self._handle_backlog(client)

    def _handle_backlog(self, client: Client) -> None:
        """Handle a client's frames in order, up to the first one that must wait."""
        try:
            while client.backlog and self._handle(client, client.backlog[0]):
                client.backlog.popleft()
        except FrameError as error:
            client.backlog.clear()
            client.refuse(str(error))

    def _handle(self, client: Client, frame: Frame) -> bool:
        """Handle one lookup or push; False if it must wait."""
        header, progress = frame.header, self.progress
        if progress is None or header.generation != progress.generation:
            client.send(self.answer(client.rank, header.generation))
            return True
        if header.operation is Operation.LOOKUP:
            if not self._may_read(progress, header):
                return False
            self._look_up(client, frame)
            return True
        return self._push(client, frame, progress)

    def _commit(self, client: Client, header: Header) -> None:
        client.refuse(f"{header.operation.name} in a job without merged steps")

    def _may_read(self, progress: Progress, header: Header) -> bool:  # noqa: ARG002 -- `StepService` differs
        """Return whether a lookup can be answered now."""
        return progress.replay_barrier.open

    def _look_up(self, client: Client, frame: Frame) -> None:
        rows = self.frame_rows.find(frame)
        found = [*self.arena.read(rows.slots)]
        for band, keys in zip(self.dynamic, rows.keys, strict=True):
            found[band.band] = band.read(keys, frame.header.step)
        vectors = [converted(each, self.encoding.vector_type) for each in found]
        self.trace.lap("look up")
        header = frame.header
        ticket, count, size_bytes = header.ticket, header.count, sum(each.nbytes for each in vectors)
        header = self._header(Operation.VECTORS, client.rank, ticket, count=count, size_bytes=size_bytes)
        client.send(header, *vectors)
        self.metrics.rows_read.inc(count)
        self.trace.lap("send")

    def _push(self, client: Client, frame: Frame, progress: Progress) -> bool:
        before = progress.applied[client.rank]
        admission = admit_push(frame.header.step, before, progress.cuts, resumed=progress.resumed)
        match admission:
            case Admission.HOLD:
                return False
            case Admission.DROP:
                client.send(self._header(Operation.ACK, client.rank))
            case Admission.APPLY:
                if not self._is_next(progress, frame.header):
                    return False
                if not self._apply(progress, frame):
                    self.push_waits = True
                    return False
                self.trace.lap("apply")
                self.persist()
                place = frame.header.order or progress.order
                client.send(self._header(Operation.ACK, client.rank)._replace(order=place))
                self._cut_if_due(progress)
                if client.rank == 0:
                    self.trace.end(frame.header.step)
            case _:
                assert_never(admission)
        self.metrics.pushes.labels(admission.name.lower()).inc()
        return True

    def _is_next(self, progress: Progress, header: Header) -> bool:
        """Return whether no push of another rank is to be applied before this one."""
        if progress.replay_barrier.open:
            return True
        heads = {
            each.rank: each.backlog[0].header.order
            for each in self._clients
            if each.backlog and each.backlog[0].header.operation is Operation.PUSH
        }
        return progress.replay_barrier.is_next(header.rank, header.order, heads, progress.applied)

    def _apply(self, progress: Progress, frame: Frame) -> bool:
        """Apply a push to the rows and count it; False while the undo log of a save has no space for it."""
        header = frame.header
        order = order_of(progress.total_samples, self._job.data.batch_size)
        if not 1 <= header.step <= steps_in(order.total_samples, order.batch_size):
            raise FrameError(f"a push of step {header.step}, but the job has {order.total_samples} samples")
        # A replay that an earlier process began is not timed, because its start is unknown here.
        if not progress.replayed and progress.replay_barrier.replays(header.rank, header.step):
            progress.replay_began = monotonic()
        if header.count:
            rows = self.frame_rows.find(frame)
            gradients = self.arena.split(rows.slots, rows.values)
            self.before_change(rows.slots)
            if not self.arena.apply(rows.slots, rows.numbers, gradients, header.step, header.pack(), rank=header.rank):
                return False
            self.on_change(rows.slots)
        self._account(progress, header)
        self.metrics.rows_changed.inc(header.count)
        return True

    def _account(self, progress: Progress, header: Header) -> None:
        """Count a push that is in the rows. Its place is the one that it had before, or the next."""
        order = order_of(progress.total_samples, self._job.data.batch_size)
        before = progress.applied[header.rank]
        if progress.replay_barrier.replays(header.rank, header.step):
            replayed = order.slice_of(header.step, header.rank, len(progress.applied))
            progress.replayed += replayed.stop - replayed.start
        if progress.cuts.holds(header.step):  # it was admitted, so the cut can never be reached exactly
            self.given_up_step = progress.cuts.pending
            progress.cuts, self._backlogs_changed = progress.cuts.void(), True
        progress.losses = progress.losses.applied(header.rank, before, header.step, order)
        progress.row_updates = after_push(progress.row_updates, header.rank, header.row_updates, header.count)
        progress.applied = tuple(header.step if r == header.rank else s for r, s in enumerate(progress.applied))
        place = header.order or progress.order + 1
        progress.in_order &= place > progress.order
        progress.order = max(progress.order, place)
        progress.dirty = True
        self._open_barrier_if_replayed(progress)

    def _cut_if_due(self, progress: Progress) -> None:
        if not progress.cuts.due(progress.applied):
            return
        if progress.cuts.loose:
            # A trainer that went back to this cut would not push again the lost steps after it.
            mark = self.mark(progress)
            if any(end > mark.samples for _, end in mark.lost):
                self.given_up_step, progress.cuts = progress.cuts.pending, progress.cuts.void()
                return
        self.on_cut()
        progress.cuts, self._backlogs_changed = progress.cuts.take(), True
        progress.dirty = False
        self.persist()

    def _header(
        self, operation: Operation, rank: int, ticket: int = 0, *, count: int = 0, size_bytes: int = 0
    ) -> Header:
        save, progress = self.newest_save, self.progress
        if operation in {Operation.ACK, Operation.PONG}:
            count = int(self.store_full)
        return Header(
            operation,
            roster=self.counters.roster,
            group=self.counters.group,
            generation=self.counters.generation if progress is None else progress.generation,
            rank=rank,
            step=0 if progress is None else progress.applied[rank],
            row_updates=0 if progress is None else progress.row_updates.pushed[rank],
            cut_step=self.given_up_step,
            # A flush in mid-step is named after the farthest rank, and may lack pushes of this one.
            saved_step=min(save.step, self.saved_steps[rank]) if save and self.saved_steps else 0,
            saved_samples=0 if save is None else save.samples,
            ticket=ticket,
            count=count,
            payload_bytes=size_bytes,
            protected_step=self.protected_step,
        )
