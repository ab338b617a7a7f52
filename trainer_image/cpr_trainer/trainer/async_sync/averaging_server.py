"""The leader's averaging thread: it receives copies, combines them, and sends back targets.

No worker ever waits for it. A round of MA or BMUF waits a second at most for a late copy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from time import monotonic

import torch
from torch import Tensor

from cpr_trainer.trainer.allreduce.group import NO_STATE, Hello
from cpr_trainer.trainer.allreduce.transport import Channel, Frame, Inbox, Kind, Received
from cpr_trainer.trainer.async_sync.averaging import Combiner, mean
from cpr_trainer.trainer.async_sync.averaging_state import AveragingState, AveragingThread, pack_target, unpack_scores

_POLL_S = 0.01
#: Time that a round waits for further copies after the first one.
ROUND_TIMEOUT_S = 1.0

#: Returns a follower's hello; None if it was rejected.
Admit = Callable[[Channel, Frame], Hello | None]


class AveragingServer(AveragingThread):
    """Averages for all trainers of a group. `send_state` sends a new trainer the state to continue from."""

    def __init__(
        self,
        inbox: Inbox,
        admit: Admit,
        averaging: AveragingState,
        combiner: Combiner,
        send_state: Callable[[int, Channel], None],
    ) -> None:
        super().__init__()
        self._thread = threading.Thread(target=self._run, name="averaging-server", daemon=True)
        self._inbox = inbox
        self._admit = admit
        self._averaging = averaging
        self._combiner = combiner
        self._send_state = send_state
        self._channels: dict[int, Channel] = {}
        self._copies: dict[int, tuple[int, Tensor]] = {}
        self._round_began = 0.0
        self._halted: dict[int, int] = {}
        self._announced_barrier = -1
        self._barrier_copies: dict[int, Tensor] = {}
        self._merged: bytes | None = None

    def start(self, members: Iterable[tuple[int, Channel]]) -> None:
        """Start the thread, with the members that are connected already."""
        self._channels |= members
        self._thread.start()

    def stop(self) -> tuple[Channel, ...]:
        """End the thread; return the connections, which are open."""
        self._ended.set()
        self._thread.join()
        return tuple(self._channels.values())

    def leave(self, drop: Callable[[Channel], None]) -> None:
        """Drop all connections and end the thread. Dropping first ends a send that a hanging peer blocks."""
        self._ended.set()
        for channel in tuple(self._channels.values()):
            drop(channel)
        for channel in self.stop():
            drop(channel)

    def present(self) -> frozenset[int]:
        """Return the ranks that are connected."""
        return frozenset(rank for rank, channel in tuple(self._channels.items()) if not channel.closed)

    def share(self, merged: Tensor) -> None:
        """Send all trainers the merged scores, int64 [n]: any of them may lead next."""
        self._merged = merged.numpy().tobytes()

    def last_mean(self) -> Tensor | None:
        """Return the mean of all trainers' copies at the barrier; None until all have stopped there."""
        averaging, copies = self._averaging, tuple(self._barrier_copies.values())
        at_barrier = {averaging.done, averaging.halted_step, *self._halted.values()} == {averaging.barrier_step}
        if not at_barrier or len(copies) < averaging.trainers - 1:
            return None
        _, own = averaging.take_copy()
        return mean((own, *copies))

    def _run_once(self) -> None:
        received = self._inbox.take(_POLL_S)
        if received is not None:
            self._handle(received)
        self._announce_barrier()
        if self._averaging.due():
            self._offer(self._averaging.rank, *self._averaging.take_copy())
        self._combine(monotonic())
        if (merged := self._merged) is not None:
            self._merged = None
            self._send_all(Frame(Kind.SCORES, self._averaging.rank, payload=merged))

    def _handle(self, received: Received) -> None:
        channel, frame = received.channel, received.frame
        if frame is None:
            return  # A lost member is recognised by its closed connection.
        if frame.kind is Kind.HELLO:
            hello = self._admit(channel, frame)
            if hello is None:
                return
            if (before := self._channels.get(hello.rank)) is not None:
                before.close()
            self._channels[hello.rank] = channel
            # The member reports its halted step and sends its last copy again.
            self._barrier_copies.pop(hello.rank, None)
            self._halted.pop(hello.rank, None)
            self._announced_barrier = -1
            if hello.done == NO_STATE:
                self._send_state(hello.rank, channel)
        elif self._channels.get(frame.rank) is channel:
            self._on_frame(frame)

    def _on_frame(self, frame: Frame) -> None:
        if frame.kind is Kind.COPY:
            copy = torch.frombuffer(frame.payload, dtype=torch.float32)
            self._offer(frame.rank, frame.step, copy)
            if frame.step == self._averaging.barrier_step:
                self._barrier_copies[frame.rank] = copy
        elif frame.kind is Kind.READY:
            self._halted[frame.rank] = frame.step
        elif frame.kind is Kind.SCORES:
            self._averaging.arrived.append(unpack_scores(frame.step, bytearray(frame.payload)))
            self._channels[frame.rank].send(Frame(Kind.SCORES, self._averaging.rank, frame.step))

    def _announce_barrier(self) -> None:
        """Once all have halted, set the barrier at the farthest of them. A later report may still be farther."""
        averaging = self._averaging
        halted = (averaging.halted_step, *self._halted.values())
        if len(halted) < averaging.trainers or min(halted) < 0 or max(halted) == self._announced_barrier:
            return
        self._announced_barrier = max(halted)
        self._barrier_copies.clear()
        averaging.set_barrier(self._announced_barrier)
        self._send_all(Frame(Kind.GO, averaging.rank, self._announced_barrier))

    def _send_all(self, frame: Frame) -> None:
        for channel in tuple(self._channels.values()):
            if not channel.closed:
                channel.send(frame)

    def _offer(self, rank: int, step: int, copy: Tensor) -> None:
        if not self._copies:
            self._round_began = monotonic()
        self._copies[rank] = (step, copy)

    def _combine(self, now: float) -> None:
        """Combine the offered copies if the round is complete, or has waited long enough."""
        if not self._copies:
            return
        if not self._combiner.together:
            for rank in tuple(self._copies):
                self._answer((rank,))
            return
        training = self.present() - self._barrier_copies.keys()
        if self._averaging.done != self._averaging.barrier_step:
            training |= {self._averaging.rank}
        if training <= self._copies.keys() or now - self._round_began >= ROUND_TIMEOUT_S:
            self._answer(tuple(self._copies))

    def _answer(self, ranks: tuple[int, ...]) -> None:
        averaging = self._averaging
        offered = {rank: self._copies.pop(rank) for rank in ranks}
        target = self._combiner.combine(tuple(copy for _, copy in offered.values()))
        for rank, (step, _) in offered.items():
            averaging.steps[rank] = max(averaging.steps[rank], step)
        answer = pack_target(tuple(averaging.steps), target)
        for rank in ranks:
            if rank == averaging.rank:
                averaging.put_target(target)
            elif (channel := self._channels.get(rank)) is not None:
                channel.send(Frame(Kind.TARGET, averaging.rank, payload=answer))
