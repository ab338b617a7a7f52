"""A follower's side of a group: it connects to the leader and follows its messages."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from time import monotonic

from cpr_contract.codec import from_json, to_json
from cpr_contract.roster import Peer, TrainerRoster
from cpr_trainer.trainer.allreduce.collective import TIMEOUT, ConnectedGroup
from cpr_trainer.trainer.allreduce.group import Form, Go, Hello, Provide, Replica
from cpr_trainer.trainer.allreduce.listener import PeerListener, PeerLiveness
from cpr_trainer.trainer.allreduce.transport import Channel, Frame, Kind
from cpr_trainer.trainer.allreduce.tunnel import Entries, Entry
from cpr_trainer.trainer.control import POLL_INTERVAL_S, Finished, GroupBroken, PollInterrupts, Superseded


class GroupFollower(ConnectedGroup):
    """The `Group` of a trainer that another one leads. `delays_s` are the pauses between attempts to reach it."""

    def __init__(
        self,
        listener: PeerListener,
        liveness: PeerLiveness,
        roster: TrainerRoster,
        delays_s: Iterator[float],
        *,
        sums: bool = True,
    ) -> None:
        super().__init__(listener, liveness, roster, sums=sums)
        self._leader = leader_of(roster)
        self._delays_s = delays_s
        self._channel: Channel | None = None
        self._go: Frame | None = None  # a GO that `check` has met

    def join(self, replica: Replica, provide: Provide, poll_interrupts: PollInterrupts) -> bool:
        """See `Group`; `provide` is the leader's."""
        del provide
        self._waiting, self.pin = True, 0
        while True:
            try:
                form = self._join(replica, poll_interrupts)
            except GroupBroken:
                self.leave()
                end = monotonic() + next(self._delays_s)
                while monotonic() < end:
                    self._take(poll_interrupts)
            else:
                self._waiting = False
                return form.survivors

    def follow(self, roster: TrainerRoster) -> None:
        self._leader = leader_of(roster)

    def announce(self, step: int) -> None:
        self._send(Frame(Kind.READY, self._listener.rank, step))

    def go(self, cut_step: int, poll_interrupts: PollInterrupts) -> Go:
        del cut_step
        self._waiting = True
        while True:
            frame = self._go or self._take(poll_interrupts)
            if frame and frame.kind is Kind.GO:
                self._waiting, self._go = False, None
                return Go(frame.step, frame.cut_step)

    def check(self, poll_interrupts: PollInterrupts) -> None:
        frame = self._take(poll_interrupts, 0.0)
        if frame and frame.kind is Kind.GO:
            self._go = frame

    def conclude(self) -> bool:
        return False

    def missing(self) -> tuple[int, ...]:
        return (self._leader.index,) if self._waiting else ()

    def unresponsive(self, for_s: float) -> tuple[int, ...]:
        return self._liveness.unresponsive(for_s, ((self._leader.index, self._leader.incarnation),))

    def leave(self) -> None:
        self._leave_collective()
        self._go = None
        if self._channel:
            self._listener.drop(self._channel)
            self._channel = None

    def _join(self, replica: Replica, poll_interrupts: PollInterrupts) -> Form:
        self.leave()
        poll_interrupts()
        try:
            self._channel = self._listener.connect_to(self._leader)
        except OSError as error:
            raise GroupBroken(f"the leader cannot be reached: {error}") from error
        counters = self._roster.counters
        hello = Hello(self._listener.rank, self._roster.incarnation, counters.group, counters.generation, replica.done)
        self._send(Frame(Kind.HELLO, self._listener.rank, payload=to_json(hello).encode()))
        self._liveness.track(self._leader.index, self._leader.incarnation, self._channel)
        # The leader may request or send a dense state before it forms the group.
        while (frame := self._take(poll_interrupts)) is None or frame.kind is not Kind.FORM:
            if frame is not None and frame.kind is Kind.FETCH:
                self._send(Frame(Kind.STATE, self._listener.rank, replica.done, payload=replica.pack()))
            elif frame is not None and frame.kind is Kind.STATE:
                replica.unpack(frame.payload, frame.step)
        form = from_json(Form, bytes(frame.payload))
        exchange = partial(self._exchange_addresses, poll_interrupts=poll_interrupts)
        self._build(exchange, len(self._roster.trainers), poll_interrupts)
        return form

    def _exchange_addresses(self, own: Entry, poll_interrupts: PollInterrupts) -> Entries:
        """Send the leader this trainer's entry, and return the entries of all."""
        self._send(Frame(Kind.ENTRY, self._listener.rank, payload=to_json(own).encode()))
        end = monotonic() + TIMEOUT.total_seconds()
        while monotonic() <= end:
            frame = self._take(poll_interrupts)
            if frame and frame.kind is Kind.ENTRY:
                return from_json(Entries, bytes(frame.payload))
        raise GroupBroken("the leader sent no addresses")

    def _take(self, poll_interrupts: PollInterrupts, timeout_s: float = POLL_INTERVAL_S) -> Frame | None:
        """Return the leader's next frame, None if there is none in this interval. GO answers `announce` only."""
        poll_interrupts()
        received = self._listener.inbox.take(timeout_s)
        if received is None:
            return None
        if received.channel is not self._channel:
            if received.frame is not None:
                self._listener.drop(received.channel)  # The caller's roster, another one, names this trainer leader.
            return None
        if received.frame is None:
            raise GroupBroken("the leader is gone")
        if received.frame.kind is Kind.REFUSED:
            raise Superseded("the leader's roster has a newer incarnation of this trainer")
        if received.frame.kind is Kind.DONE:
            raise Finished
        if received.frame.kind is Kind.DATA:
            self.pin = received.frame.step
        return received.frame

    def _send(self, frame: Frame) -> None:
        if self._channel is None or not self._channel.send(frame):
            raise GroupBroken("the leader is gone")


def leader_of(roster: TrainerRoster) -> Peer:
    """Return the trainer that leads."""
    return next(peer for peer in roster.trainers if peer.index == roster.leader)
