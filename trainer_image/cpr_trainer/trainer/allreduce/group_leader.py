"""The leader's side of a group: it admits members, chooses the state to continue from, and starts each step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from time import monotonic

from cpr_contract.codec import ContractError, from_json, to_json
from cpr_contract.roster import TrainerRoster
from cpr_trainer.trainer.allreduce.collective import TIMEOUT, ConnectedGroup
from cpr_trainer.trainer.allreduce.group import Form, Go, Hello, Provide, Replica, StateAgreement, agree_on_state
from cpr_trainer.trainer.allreduce.listener import PeerListener, PeerLiveness
from cpr_trainer.trainer.allreduce.transport import Channel, Frame, Kind, Received
from cpr_trainer.trainer.allreduce.tunnel import Entries, Entry
from cpr_trainer.trainer.control import POLL_INTERVAL_S, GroupBroken, PollInterrupts

_DISMISS_TIMEOUT_S = 2.0


class GroupLeader(ConnectedGroup):
    """The `Group` of the trainer that the roster names leader."""

    def __init__(
        self, listener: PeerListener, liveness: PeerLiveness, roster: TrainerRoster, *, sums: bool = True
    ) -> None:
        super().__init__(listener, liveness, roster, sums=sums)
        self._others = {peer.index: peer for peer in roster.trainers if peer.index != roster.index}
        self._arrived: dict[int, tuple[Hello, Channel]] = {}
        self._members: dict[int, Channel] = {}
        self._ready: dict[int, int] = {}

    @property
    def members(self) -> dict[int, Channel]:
        """The connections of the members, by rank."""
        return self._members

    def join(self, replica: Replica, provide: Provide, poll_interrupts: PollInterrupts) -> bool:
        while True:
            self._disband()
            self._waiting = True
            try:
                while self._arrived.keys() != self._others.keys():
                    self._take(poll_interrupts)
                self._waiting = False
                own = Hello(self._listener.rank, self._roster.incarnation, *self._key, replica.done)
                hellos = (own, *(hello for hello, _ in self._arrived.values()))
                agreement = agree_on_state(hellos, self._listener.rank)
                self._members = {rank: channel for rank, (_, channel) in self._arrived.items()}
                self._arrived = {}
                self._share_state(agreement, replica, provide, poll_interrupts)
                form = Form(replica.done, survivors=agreement.source is not None)
                self._send_all(Frame(Kind.FORM, self._listener.rank, replica.done, payload=to_json(form).encode()))
                exchange = partial(self._exchange_addresses, poll_interrupts=poll_interrupts)
                self._build(exchange, 1 + len(self._members), poll_interrupts)
            except GroupBroken:
                poll_interrupts()
            else:
                return form.survivors

    def go(self, cut_step: int, poll_interrupts: PollInterrupts) -> Go:
        self._waiting = True
        while self._ready.keys() != self._members.keys():
            self._take(poll_interrupts)
        self._waiting = False
        go = Go(max(self._step, *self._ready.values()), cut_step)
        self._ready.clear()
        self._send_all(Frame(Kind.GO, self._listener.rank, go.step, go.cut_step))
        return go

    def name_pin(self, number: int) -> None:
        super().name_pin(number)
        self._send_all(Frame(Kind.DATA, self._listener.rank, number))

    def dismiss(self) -> None:
        dismiss(self._listener, tuple(self._members.values()))

    def missing(self) -> tuple[int, ...]:
        if not self._waiting:
            return ()
        present = self._ready if self._members else self._arrived
        return tuple(sorted(self._others.keys() - present.keys()))

    def unresponsive(self, for_s: float) -> tuple[int, ...]:
        members = tuple((peer.index, peer.incarnation) for peer in self._others.values())
        return self._liveness.unresponsive(for_s, members)

    def leave(self) -> None:
        self._disband()
        for _, channel in self._arrived.values():
            self._listener.drop(channel)

    def admit(self, channel: Channel, frame: Frame) -> Hello | None:
        """Return the hello of a member of the group; close the connection of any other caller and return None."""
        try:
            hello = from_json(Hello, bytes(frame.payload))
        except ContractError:
            self._listener.drop(channel)
            return None
        peer = self._others.get(hello.rank)
        if peer and hello.incarnation < peer.incarnation:
            channel.send(Frame(Kind.REFUSED, self._listener.rank))
        if peer is None or hello.incarnation != peer.incarnation or (hello.group, hello.generation) != self._key:
            self._listener.drop(channel)  # One side has an older roster: the caller tries again.
            return None
        self._liveness.track(hello.rank, hello.incarnation, channel)
        return hello

    def _disband(self) -> None:
        """Close all members' connections; each member connects again."""
        self._leave_collective()
        for channel in self._members.values():
            self._listener.drop(channel)
        self._members = {}
        self._ready = {}

    def _share_state(
        self, agreement: StateAgreement, replica: Replica, provide: Provide, poll_interrupts: PollInterrupts
    ) -> None:
        if agreement.source is None:
            provide()
        elif agreement.source != self._listener.rank:
            self._send(agreement.source, Frame(Kind.FETCH, self._listener.rank))
            while True:
                received = self._take(poll_interrupts)
                frame = received.frame if received else None
                if frame and frame.kind is Kind.STATE and frame.rank == agreement.source:
                    break
            replica.unpack(frame.payload, frame.step)
        receivers = tuple(rank for rank in agreement.copy_to if rank != self._listener.rank)
        if receivers:
            state = Frame(Kind.STATE, self._listener.rank, replica.done, payload=replica.pack())
            for rank in receivers:
                self._send(rank, state)

    def _exchange_addresses(self, own: Entry, poll_interrupts: PollInterrupts) -> Entries:
        """Collect the entry of every member, and send all entries to all members."""
        found: dict[int, Entry] = {}
        end = monotonic() + TIMEOUT.total_seconds()
        while found.keys() != self._members.keys():
            if monotonic() > end:
                raise GroupBroken(f"trainers {sorted(self._members.keys() - found.keys())} sent no address")
            received = self._take(poll_interrupts)
            if received and received.frame and received.frame.kind is Kind.ENTRY:
                found[received.frame.rank] = from_json(Entry, bytes(received.frame.payload))
        entries = Entries((own, *found.values()))
        self._send_all(Frame(Kind.ENTRY, self._listener.rank, payload=to_json(entries).encode()))
        return entries

    def _take(self, poll_interrupts: PollInterrupts, timeout_s: float = POLL_INTERVAL_S) -> Received | None:
        """Handle one arrival; return it if it is a member's. Raises GroupBroken if a member is lost."""
        poll_interrupts()
        received = self._listener.inbox.take(timeout_s)
        if received is None:
            return None
        if received.frame and received.frame.kind is Kind.HELLO:
            hello = self.admit(received.channel, received.frame)
            if hello is None:
                return None
            if former := self._arrived.get(hello.rank):
                # Either of the two may be the newer one: each is authenticated at its own pace. A member that still
                # uses the former connection sees it close, and connects again.
                self._listener.drop(former[1])
            self._arrived[hello.rank] = (hello, received.channel)
            if hello.rank in self._members:
                raise GroupBroken(f"trainer {hello.rank} came back")
            return None
        for rank, channel in self._members.items():
            if channel is received.channel:
                if received.frame is None:
                    raise GroupBroken(f"trainer {rank} is gone")
                if received.frame.kind is Kind.READY:
                    self._ready[rank] = received.frame.step
                return received
        self._arrived = {rank: entry for rank, entry in self._arrived.items() if not entry[1].closed}
        return None

    @property
    def _key(self) -> tuple[int, int]:
        return self._roster.counters.group, self._roster.counters.generation

    def _send(self, rank: int, frame: Frame) -> None:
        if not self._members[rank].send(frame):
            raise GroupBroken(f"trainer {rank} is gone")

    def _send_all(self, frame: Frame) -> None:
        for rank in self._members:
            self._send(rank, frame)


def dismiss(listener: PeerListener, channels: Sequence[Channel]) -> None:
    """Send all members the end of the job, and wait until they have closed their connections."""
    for channel in channels:
        channel.send(Frame(Kind.DONE, listener.rank))
    # Closing a connection with unread data resets it, which may discard the message just sent.
    end = monotonic() + _DISMISS_TIMEOUT_S
    while monotonic() < end and not all(channel.closed for channel in channels):
        listener.inbox.take(POLL_INTERVAL_S)
