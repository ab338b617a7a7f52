"""What a shard answers: lookups, pushes, pings; and when its rows are to be saved. No sockets, no store.

One thread calls everything here: pushes are applied one after another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from time import monotonic
from typing import Any, Protocol, assert_never

from cpr_contract.reports import SaveRef
from cpr_contract.roster import Counters
from cpr_contract.spec import JobSpec, samples_at, steps_in
from cpr_trainer.arrays import Ints
from cpr_trainer.checkpoint.write.save import Mark
from cpr_trainer.embedding.arena import Arena
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.exchange.encoding import Encoding
from cpr_trainer.exchange.frames import Frame, FrameError, Header, Operation
from cpr_trainer.runtime import Trace
from cpr_trainer.shard.losses import after_push, order_of
from cpr_trainer.shard.metrics import Metrics
from cpr_trainer.shard.progress import Progress
from cpr_trainer.shard.pushes import Fate, Standing, fate_of, standing_of

_ANSWERS = {
    Standing.SERVED: Operation.PONG,
    Standing.STALE: Operation.STALE,
    Standing.NOT_READY: Operation.NOT_READY,
}


class Client(Protocol):
    """A trainer's connection, as the service needs it. `backlog` holds frames that wait behind a cut."""

    backlog: deque[Frame]

    @property
    def rank(self) -> int:
        """The trainer's rank."""
        ...

    def send(self, header: Header, *payload: Any) -> None:
        """Send a frame; never blocks, never raises."""
        ...

    def refuse(self, why: str) -> None:
        """Tell the trainer why its connection is closed, and close it once this frame is handled."""
        ...


class Service:
    """Serves one shard. `progress` is None while it does not.

    `on_cut` is called when the rows are to be saved, `on_change` with the slots (int64 [k]) that a push has changed,
    `before_change` with those that it is about to change, `on_serving` whenever it begins or ceases to serve.

    `waits` says that a push waits for a save under way to read on; `retry` it soon. `keep` is called when the progress
    has changed and nobody was told yet; `life` is the server's number among those of this incarnation.

    Counters, the newest save, the last step of each rank that it holds (`saved_steps`, empty for none) and the last cut
    that was given up (0: none) go into every answer, and so does `protected_step`, the last one that parity holds of
    every rank (-1: there is none, or not of all rows); whoever knows keeps them up to date, and `protected_samples`.
    """

    def __init__(self, job: JobSpec, placement: Placement, index: int, arena: Arena, metrics: Metrics) -> None:
        self.arena = arena
        self.encoding = Encoding.of(job)
        self.counters = Counters(roster=0, group=0, generation=0)
        self.newest_save: SaveRef | None = None
        self.saved_steps: tuple[int, ...] = ()
        self.protected_step = -1
        self.protected_samples: int | None = None
        self.given_up_step = 0
        self.store_full = False  # for the save under way
        self.progress: Progress | None = None
        self.on_cut: Callable[[], None] = lambda: None
        self.on_change: Callable[[Ints], None] = lambda _slots: None
        self.before_change: Callable[[Ints], None] = lambda _slots: None
        self.on_serving: Callable[[], None] = lambda: None
        self.keep: Callable[[], None] = lambda: None
        self.life = 1
        self.trace = Trace(None)
        self._job = job
        self._narrowest, self._widest = min(job.model.dims), max(job.model.dims)
        self._placement = placement
        self._index = index
        self.metrics = metrics
        self._clients: list[Client] = []
        self._held_free = False
        self.waits = False

    def start(self, progress: Progress) -> None:
        """Serve from here on, and let all clients know."""
        self.progress = progress
        self.on_serving()
        for client in self._clients:
            client.send(self.standing(client.rank, progress.generation))

    def go_on(self, progress: Progress, push: Header | None) -> None:
        """Serve on where a server before this one stood; its last `push` is in the rows, but not in the progress."""
        if push is not None:
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

    def joined(self, client: Client) -> None:
        """Welcome a trainer whose proof holds."""
        self._clients.append(client)
        if self.progress is not None:
            self.progress.catch_up = self.progress.catch_up.joined(client.rank)
        client.send(self._header(Operation.WELCOME, client.rank, count=self.life))
        client.send(self.standing(client.rank, self.counters.generation))

    def left(self, client: Client) -> None:
        """Forget a trainer's connection and what it had sent ahead: it sends that again."""
        if client in self._clients:
            self._clients.remove(client)

    def on_frame(self, client: Client, frame: Frame) -> None:
        """Handle one frame; a trainer that sends what it may not is refused."""
        header = frame.header
        if header.rank != client.rank:
            client.refuse(f"rank {header.rank} on the connection of rank {client.rank}")
            return
        self._take_in(header)
        match header.operation:
            case Operation.PING:
                self._note_promise(header)
                client.send(self.standing(client.rank, header.generation))
            case Operation.LOOKUP | Operation.PUSH:
                client.backlog.append(frame)
                self._work(client)
                if client.backlog and client.backlog[-1] is frame:
                    client.backlog[-1] = frame.detached()
                # What came may be what another rank's push waits for.
                self._held_free |= self.progress is not None and not self.progress.catch_up.over
            case _:
                client.refuse(f"a trainer does not send {header.operation.name}")
        self._work_on()

    def retry(self) -> None:
        """Handle what waits for a save to read on."""
        if self.waits:
            self.waits, self._held_free = False, True
            self._work_on()

    def standing(self, rank: int, generation: int) -> Header:
        """Return the answer to a trainer of `generation` that asks whether it is served."""
        standing = standing_of(generation, None if self.progress is None else self.progress.generation)
        return self._header(_ANSWERS[standing], rank)

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
            progress.row_updates,
            last=samples == progress.total_samples,
            standing=progress.cuts.standing,
        )

    def _take_in(self, header: Header) -> None:
        """Note what every frame of a trainer carries: the size of the job, and the next cut."""
        progress = self.progress
        if progress is None or header.generation != progress.generation:
            return
        progress.total_samples = header.total_samples
        cuts = progress.cuts.announced(header.cut_step, progress.applied)
        if cuts != progress.cuts:
            # A later cut may set free what an earlier one held.
            progress.cuts, self._held_free = cuts, True
            self._cut_if_due(progress)

    def _note_promise(self, header: Header) -> None:
        progress = self.progress
        if progress is not None and header.generation == progress.generation:
            progress.catch_up = progress.catch_up.told(header.rank, header.step)
            self._open_if_caught_up(progress)

    def _open_if_caught_up(self, progress: Progress) -> None:
        """Answer the lookups that wait once all ranks have sent what they kept."""
        if progress.catch_up.over:
            return
        progress.catch_up, self._held_free = progress.catch_up.after(progress.applied), True
        if progress.catch_up.over and progress.replay_began is not None:
            progress.replay_s = monotonic() - progress.replay_began

    def _work_on(self) -> None:
        """Handle what may wait no longer, as long as that sets more free."""
        while self._held_free:
            self._held_free = False
            for client in tuple(self._clients):
                self._work(client)

    def _work(self, client: Client) -> None:
        """Handle what a client sent, in order, up to the first push that must wait."""
        try:
            while client.backlog and self._handle(client, client.backlog[0]):
                client.backlog.popleft()
        except FrameError as error:
            client.backlog.clear()
            client.refuse(str(error))

    def _handle(self, client: Client, frame: Frame) -> bool:
        """Handle one lookup or push; False if it must wait."""
        header, progress = frame.header, self.progress
        self._check_size(header, header.count * self._narrowest, header.count * self._widest)
        if progress is None or header.generation != progress.generation:
            client.send(self.standing(client.rank, header.generation))
            return True
        if header.operation is Operation.LOOKUP:
            if not progress.catch_up.over:
                return False
            self._look_up(client, frame)
            return True
        return self._push(client, frame, progress)

    def _look_up(self, client: Client, frame: Frame) -> None:
        slots, _ = self._slots(frame)
        vectors = [self.encoding.pack_values(rows) for rows in self.arena.read(slots)]
        self.trace.lap("look up")
        ticket, count, size_bytes = frame.header.ticket, len(slots), sum(each.nbytes for each in vectors)
        header = self._header(Operation.VECTORS, client.rank, ticket, count=count, size_bytes=size_bytes)
        client.send(header, *vectors)
        self.metrics.rows_read.inc(count)
        self.trace.lap("send")

    def _push(self, client: Client, frame: Frame, progress: Progress) -> bool:
        before, begun = progress.applied[client.rank], progress.resumed
        fate = fate_of(frame.header.step, before, progress.cuts, begun=begun)
        match fate:
            case Fate.HOLD:
                return False
            case Fate.DROP:
                client.send(self._header(Operation.ACK, client.rank))
            case Fate.APPLY:
                if not self._is_next(progress, frame.header):
                    return False
                if not self._apply(progress, frame):
                    self.waits = True
                    return False
                self.trace.lap("apply")
                self.keep()
                place = frame.header.order or progress.order
                client.send(replace(self._header(Operation.ACK, client.rank), order=place))
                self._cut_if_due(progress)
                if client.rank == 0:
                    self.trace.end(frame.header.step)
            case _:
                assert_never(fate)
        self.metrics.pushes.labels(fate.name.lower()).inc()
        return True

    def _is_next(self, progress: Progress, header: Header) -> bool:
        """Whether no push of another rank is to be applied before this one."""
        if progress.catch_up.over:
            return True
        heads = {
            each.rank: each.backlog[0].header.order
            for each in self._clients
            if each.backlog and each.backlog[0].header.operation is Operation.PUSH
        }
        return progress.catch_up.is_next(header.rank, header.order, heads, progress.applied)

    def _apply(self, progress: Progress, frame: Frame) -> bool:
        """Take the push into the rows and the account of them; False if a save under way has no room for it yet."""
        header = frame.header
        order = order_of(progress.total_samples, self._job.data.batch_size)
        if not 1 <= header.step <= steps_in(order.total_samples, order.batch_size):
            raise FrameError(f"a push of step {header.step}, but the job has {order.total_samples} samples")
        # A replay that an earlier life began is not timed: what came then is counted, and when is not known.
        if not progress.replayed and progress.catch_up.replays(header.rank, header.step):
            progress.replay_began = monotonic()
        if header.count:
            slots, numbers = self._slots(frame)
            gradients = self.arena.split(slots, self.encoding.unpack_values(frame.payload, header.count))
            self.before_change(slots)
            if not self.arena.apply(slots, numbers, gradients, header.step, header.pack()):
                return False
            self.on_change(slots)
        self._account(progress, header)
        self.metrics.rows_changed.inc(header.count)
        return True

    def _account(self, progress: Progress, header: Header) -> None:
        """Count a push that is in the rows. Its place is the one that it had before, or the next."""
        order = order_of(progress.total_samples, self._job.data.batch_size)
        before = progress.applied[header.rank]
        if progress.catch_up.replays(header.rank, header.step):
            replayed = order.slice_of(header.step, header.rank, len(progress.applied))
            progress.replayed += replayed.stop - replayed.start
        if progress.cuts.holds(header.step):  # and yet it is applied: the cut can never be reached exactly
            self.given_up_step = progress.cuts.pending
            progress.cuts, self._held_free = progress.cuts.void(), True
        progress.losses = progress.losses.applied(header.rank, before, header.step, order)
        progress.row_updates = after_push(progress.row_updates, header.rank, header.row_updates, header.count)
        progress.applied = tuple(header.step if r == header.rank else s for r, s in enumerate(progress.applied))
        place = header.order or progress.order + 1
        progress.in_order &= place > progress.order
        progress.order = max(progress.order, place)
        progress.dirty = True
        self._open_if_caught_up(progress)

    def _cut_if_due(self, progress: Progress) -> None:
        if not progress.cuts.due(progress.applied):
            return
        if progress.cuts.loose and self._lost_beyond(progress):
            self.given_up_step, progress.cuts = progress.cuts.pending, progress.cuts.void()
            return
        self.on_cut()
        progress.cuts, self._held_free = progress.cuts.take(), True
        progress.dirty = False
        self.keep()

    def _lost_beyond(self, progress: Progress) -> bool:
        """Whether the rows lack steps of after the cut, which nobody would push again who went back to it."""
        mark = self.mark(progress)
        return any(end > mark.samples for _, end in mark.lost)

    def _slots(self, frame: Frame) -> tuple[Ints, Ints]:
        """Return the slots and the numbers of the rows that a frame names. Raises FrameError."""
        header = frame.header
        numbers = self.encoding.unpack_numbers(frame.payload, header.count)
        try:
            slots = self._placement.slots_on(self._index, numbers)
        except ValueError as error:
            raise FrameError(str(error)) from error
        if len(self.arena.segments) > 1:  # of one dim, the count has told the size
            if not (slots[1:] > slots[:-1]).all():
                raise FrameError("rows of several dims are not in the order of their places")
            values = self.arena.values_in(slots)
            self._check_size(header, values, values)
        return slots, numbers

    def _check_size(self, header: Header, least: int, most: int) -> None:
        """Raise FrameError unless a frame's payload is of so many rows with so many values in all."""
        low, high = (self.encoding.payload_bytes(header.operation, header.count, values) for values in (least, most))
        if not low <= header.payload_bytes <= high:
            raise FrameError(f"{header.payload_bytes} bytes are no {header.operation.name} of {header.count} rows")

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
