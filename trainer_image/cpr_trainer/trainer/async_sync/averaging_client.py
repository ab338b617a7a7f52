"""A follower's averaging thread: it sends the leader copies of the worker's parameters, and receives targets.

A leader that is gone or hangs stops the averages, not the worker: the thread connects again until it succeeds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from cpr_contract.codec import to_json
from cpr_contract.roster import Peer
from cpr_trainer.trainer.allreduce.group import Hello
from cpr_trainer.trainer.allreduce.listener import PeerListener, PeerLiveness
from cpr_trainer.trainer.allreduce.transport import Channel, Frame, Inbox, Kind
from cpr_trainer.trainer.async_sync.averaging_state import AveragingState, AveragingThread, pack_scores, unpack_target
from cpr_trainer.trainer.control import Finished, Superseded

_POLL_S = 0.01


class AveragingClient(AveragingThread):
    """A follower's end. `hello` and `pack` return its hello and its state; `delays_s` the pauses between attempts."""

    def __init__(  # noqa: PLR0913, PLR0917 -- the connection, and the state behind it
        self,
        listener: PeerListener,
        liveness: PeerLiveness,
        leader: Peer,
        averaging: AveragingState,
        hello: Callable[[], Hello],
        pack: Callable[[], bytes],
        delays_s: Callable[[], Iterator[float]],
    ) -> None:
        super().__init__()
        self._thread = threading.Thread(target=self._run, name="averaging-client", daemon=True)
        self._listener = listener
        self._liveness = liveness
        self._leader = leader
        self._averaging = averaging
        self._hello = hello
        self._pack = pack
        self._delays_s = delays_s
        self._delays = delays_s()
        self._inbox = Inbox()
        self._channel: Channel | None = None
        self._awaits_target = False
        self._sent_scores_step = -1
        self._sent_halted_step = -1

    def follow(self, leader: Peer) -> None:
        """Connect to the leader at this address from the next attempt on."""
        self._leader = leader

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the connection, and soon the thread, which may be connecting; do not wait for it."""
        self._ended.set()
        if (channel := self._channel) is not None:
            self._listener.drop(channel)

    def _run_once(self) -> None:
        channel = self._channel
        if channel is None or channel.closed:
            self._connect()
            return
        received = self._inbox.take(_POLL_S)
        if received is not None and received.channel is channel and received.frame is not None:
            self._on_frame(received.frame)
        rank = self._listener.rank
        for delta in tuple(self._averaging.outgoing):
            if delta.step > self._sent_scores_step:
                channel.send(Frame(Kind.SCORES, rank, delta.step, payload=pack_scores(delta)))
                self._sent_scores_step = delta.step
        halted = self._averaging.halted_step
        if halted != self._sent_halted_step and channel.send(Frame(Kind.READY, rank, halted)):
            self._sent_halted_step = halted
        if not self._awaits_target and self._averaging.due():
            step, copy = self._averaging.take_copy()
            self._awaits_target = channel.send(Frame(Kind.COPY, rank, step, payload=copy.numpy().tobytes()))
            if not self._awaits_target:
                self._averaging.offer_again()

    def _connect(self) -> None:
        """Connect again, and send again all that was not answered."""
        try:
            channel = self._listener.connect_to(self._leader, self._inbox)
        except OSError:
            self._ended.wait(next(self._delays))
            return
        self._awaits_target, self._sent_scores_step, self._sent_halted_step = False, -1, -1
        self._averaging.offer_again()
        self._channel = channel
        if self._ended.is_set():
            self._listener.drop(channel)
            return
        self._liveness.track(self._leader.index, self._leader.incarnation, channel)
        hello = self._hello()
        if not channel.send(Frame(Kind.HELLO, hello.rank, payload=to_json(hello).encode())):
            self._listener.drop(channel)
            self._ended.wait(next(self._delays))
        else:
            self._delays = self._delays_s()

    def _on_frame(self, frame: Frame) -> None:
        averaging = self._averaging
        match frame.kind:
            case Kind.TARGET:
                steps, target = unpack_target(bytearray(frame.payload), averaging.trainers)
                averaging.merge_steps(steps)
                averaging.put_target(target)
                self._awaits_target = False
            case Kind.SCORES if frame.payload:
                averaging.put_merged(bytearray(frame.payload))
            case Kind.SCORES:
                while averaging.outgoing and averaging.outgoing[0].step <= frame.step:
                    averaging.outgoing.popleft()
            case Kind.GO:
                averaging.set_barrier(frame.step)
            case Kind.FETCH if self._channel is not None:
                self._channel.send(Frame(Kind.STATE, self._listener.rank, averaging.done, payload=self._pack()))
            case Kind.DONE:
                raise Finished
            case Kind.REFUSED:
                raise Superseded("the leader's roster has a newer incarnation of this trainer")
            case _:
                pass  # A form, or a heartbeat.
