"""A follower's thread: it sends the leader copies of the worker's parameters, and takes what to blend towards.

A leader that is gone or frozen stops the averages, not the worker: the thread calls again until the roster names
another.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from torch import Tensor

from cpr_contract.codec import to_json
from cpr_contract.roster import Peer
from cpr_trainer.trainer.allreduce.frames import Frame, Kind
from cpr_trainer.trainer.allreduce.listener import PeerListener, PeerLiveness
from cpr_trainer.trainer.allreduce.meeting import Hello
from cpr_trainer.trainer.allreduce.transport import Channel, Inbox
from cpr_trainer.trainer.async_sync.averaging_state import AveragingState, pack_scores, unpack_target
from cpr_trainer.trainer.interrupts import Finished, Superseded

_TURN_S = 0.01


class AveragingClient:
    """A follower's end. `hello` introduces it, `pack` returns its state; `delays_s` makes the pauses between calls."""

    def __init__(  # noqa: PLR0913, PLR0917 -- whom, as whom, how, and what for
        self,
        listener: PeerListener,
        liveness: PeerLiveness,
        leader: Peer,
        averaging: AveragingState,
        hello: Callable[[], Hello],
        pack: Callable[[], bytes],
        delays_s: Callable[[], Iterator[float]],
    ) -> None:
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
        self._waits_for_target = False
        self._scores_sent = -1
        self._halted_said = -1
        self._ending: BaseException | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shadow-spoke", daemon=True)

    def follow(self, leader: Peer) -> None:
        """Call the leader at this address from the next time on."""
        self._leader = leader

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End the connection, and soon the thread: it may be in the middle of a call, and nobody waits for it."""
        self._ended.set()
        if (channel := self._channel) is not None:
            self._listener.drop(channel)

    def check(self) -> None:
        """Raise what the leader said last (Finished, Superseded), or what else has ended the thread."""
        if self._ending is not None:
            raise self._ending

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                self._turn()
        except BaseException as error:  # noqa: BLE001 -- the main thread raises it
            self._ending = error

    def _turn(self) -> None:
        channel = self._channel
        if channel is None or channel.closed:
            self._call()
            return
        received = self._inbox.take(_TURN_S)
        if received is not None and received.channel is channel and received.frame is not None:
            self._hear(received.frame)
        self._send_scores(channel)
        self._say_halted(channel)
        if not self._waits_for_target and self._averaging.due():
            step, copy = self._averaging.take_copy()
            self._waits_for_target = channel.send(Frame(Kind.COPY, self._listener.rank, step, payload=_bytes(copy)))
            if not self._waits_for_target:
                self._averaging.offer_again()

    def _call(self) -> None:
        """Connect anew; what was not answered is said again."""
        try:
            channel = self._listener.connect_to(self._leader, self._inbox)
        except OSError:
            self._ended.wait(next(self._delays))
            return
        self._waits_for_target, self._scores_sent, self._halted_said = False, -1, -1
        self._averaging.offer_again()
        self._channel = channel
        if self._ended.is_set():
            self._listener.drop(channel)
            return
        self._liveness.track(self._leader.index, self._leader.incarnation, channel)
        if not channel.send(_hello_frame(self._hello())):
            self._listener.drop(channel)
            self._ended.wait(next(self._delays))
        else:
            self._delays = self._delays_s()

    def _hear(self, frame: Frame) -> None:
        averaging = self._averaging
        match frame.kind:
            case Kind.TARGET:
                steps, target = unpack_target(bytearray(frame.payload), averaging.trainers)
                averaging.merge_steps(steps)
                averaging.put_target(target)
                self._waits_for_target = False
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
                raise Superseded("the leader knows a newer incarnation of this trainer")
            case _:
                pass  # A form, or a sign of life.

    def _say_halted(self, channel: Channel) -> None:
        halted = self._averaging.halted_step
        if halted != self._halted_said and channel.send(Frame(Kind.READY, self._listener.rank, halted)):
            self._halted_said = halted

    def _send_scores(self, channel: Channel) -> None:
        for delta in tuple(self._averaging.outgoing):
            if delta.step > self._scores_sent:
                channel.send(Frame(Kind.SCORES, self._listener.rank, delta.step, payload=pack_scores(delta)))
                self._scores_sent = delta.step


def _bytes(copy: Tensor) -> bytes:
    return copy.numpy().tobytes()


def _hello_frame(hello: Hello) -> Frame:
    return Frame(Kind.HELLO, hello.rank, payload=to_json(hello).encode())
