"""`Group` without lockstep: a trainer waits for others only while it has no state, to receive one.

After a change of the roster a survivor trains on at once in the new group; a separate thread connects to the leader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import sleep

from torch import Tensor

from cpr_contract.choices import DenseSync
from cpr_contract.codec import to_json
from cpr_contract.roster import TrainerRoster
from cpr_trainer.trainer.allreduce.group import NO_STATE, Form, Go, Group, Hello, Provide, Replica
from cpr_trainer.trainer.allreduce.group_follower import GroupFollower, leader_of
from cpr_trainer.trainer.allreduce.group_leader import GroupLeader, dismiss
from cpr_trainer.trainer.allreduce.listener import PeerListener, PeerLiveness
from cpr_trainer.trainer.allreduce.transport import Channel, Frame, Kind
from cpr_trainer.trainer.async_sync.averaging import combiner_of
from cpr_trainer.trainer.async_sync.averaging_client import AveragingClient
from cpr_trainer.trainer.async_sync.averaging_server import AveragingServer
from cpr_trainer.trainer.async_sync.averaging_state import ScoreDelta
from cpr_trainer.trainer.control import POLL_INTERVAL_S, PollInterrupts
from cpr_trainer.trainer.state import DenseState


class AsyncGroup(Group):
    """The common part of both groups. Raises ValueError for a job in lockstep, which averages no copies."""

    def __init__(self, state: DenseState) -> None:
        super().__init__()
        if state.averaging is None:
            raise ValueError("trainers in lockstep average no copies")
        self._state = state
        self._averaging = state.averaging

    def sum(self, tensors: Sequence[Tensor], poll_interrupts: PollInterrupts) -> None:
        """See `Group`: this trainer's gradients count for all; scores go to the leader, which adds them."""
        poll_interrupts()
        gradients, *scores = tensors
        gradients.mul_(self._averaging.trainers)
        self._averaging.after_step()
        if scores:
            self._share_scores(*scores)

    def listen(self, poll_interrupts: PollInterrupts) -> None:
        self.check(poll_interrupts)
        sleep(POLL_INTERVAL_S)

    def _share_scores(self, counters: Tensor, losses: Tensor) -> None:
        raise NotImplementedError


class AsyncLeader(AsyncGroup):
    """The group of the trainer that leads: it averages for all, and has every rank's steps."""

    def __init__(
        self,
        listener: PeerListener,
        liveness: PeerLiveness,
        roster: TrainerRoster,
        kind: DenseSync,
        state: DenseState,
    ) -> None:
        super().__init__(state)
        self._listener = listener
        self._kind = kind
        self._averaging.arrived.extend(self._averaging.outgoing)  # Scores for a former leader.
        self._averaging.outgoing.clear()
        self._others = tuple(peer.index for peer in roster.trainers if peer.index != roster.index)
        self._members = GroupLeader(listener, liveness, roster, sums=False)
        self._server: AveragingServer | None = None
        self._concluded: int | None = None  # barrier of the mean that was taken

    def join(self, replica: Replica, provide: Provide, poll_interrupts: PollInterrupts) -> bool:
        """See `Group`: only a trainer without a state waits for all, because another may have one."""
        survived = replica.done != NO_STATE or self._members.join(replica, provide, poll_interrupts)
        combiner = combiner_of(self._kind, self._state.replica.parameters.cpu())
        server = AveragingServer(self._listener.inbox, self._members.admit, self._averaging, combiner, self._send_state)
        server.start(self._members.members.items())
        self._server = server
        return survived

    def go(self, cut_step: int, poll_interrupts: PollInterrupts) -> Go:
        self.check(poll_interrupts)
        return Go(self._step, cut_step)

    def conclude(self) -> bool:
        """See `Group`: the state is then the mean of all trainers' copies at the barrier."""
        is_new = self._concluded != self._averaging.barrier_step
        last = self._server.last_mean() if self._server is not None and is_new else None
        if last is not None:
            self._concluded = self._averaging.barrier_step
            self._averaging.conclude(last)
            counters, losses = self._state.scores.to_merge()
            self._share_scores(counters, losses)
            self._state.scores.merge(counters, losses)
        return self._concluded == self._averaging.barrier_step == self._averaging.halted_step

    def dismiss(self) -> None:
        if self._server is not None:
            dismiss(self._listener, self._server.stop())

    def missing(self) -> tuple[int, ...]:
        """See `Group`: without a state the ranks waited for, later the ranks that are not connected."""
        if self._server is None:
            return self._members.missing()
        return tuple(sorted(set(self._others) - self._server.present()))

    def unresponsive(self, for_s: float) -> tuple[int, ...]:
        return self._members.unresponsive(for_s)

    def leave(self) -> None:
        if self._server is not None:
            self._server.leave(self._listener.drop)
        self._members.leave()

    def _send_state(self, rank: int, channel: Channel) -> None:
        """Send a new trainer the state; its step is that of the trainer's rank."""
        steps = self._averaging.steps
        channel.send(Frame(Kind.STATE, self._listener.rank, steps[rank], payload=self._state.pack()))
        form = Form(steps[rank], survivors=True)
        channel.send(Frame(Kind.FORM, self._listener.rank, steps[rank], payload=to_json(form).encode()))

    def _share_scores(self, counters: Tensor, losses: Tensor) -> None:
        arrived = self._averaging.arrived
        while arrived:
            delta = arrived.popleft()
            counters += delta.counters
            losses += delta.losses
        if self._server is not None:
            self._server.share(self._state.scores.merged() + counters)


class AsyncFollower(AsyncGroup):
    """The group of a trainer that another one leads."""

    def __init__(
        self,
        listener: PeerListener,
        liveness: PeerLiveness,
        roster: TrainerRoster,
        state: DenseState,
        delays_s: Callable[[], Iterator[float]],
    ) -> None:
        super().__init__(state)
        self._member = GroupFollower(listener, liveness, roster, delays_s(), sums=False)
        counters = roster.counters

        def hello() -> Hello:
            return Hello(roster.index, roster.incarnation, counters.group, counters.generation, state.done)

        self._client = AveragingClient(
            listener, liveness, leader_of(roster), self._averaging, hello, state.pack, delays_s
        )

    def join(self, replica: Replica, provide: Provide, poll_interrupts: PollInterrupts) -> bool:
        """See `Group`: only a trainer without a state waits for the leader."""
        survived = True
        if replica.done == NO_STATE:
            survived = self._member.join(replica, provide, poll_interrupts)
            self._member.leave()
        self._client.start()
        return survived

    def follow(self, roster: TrainerRoster) -> None:
        self._member.follow(roster)
        self._client.follow(leader_of(roster))

    def go(self, cut_step: int, poll_interrupts: PollInterrupts) -> Go:
        """See `Group`: returns at once; only the leader announces cuts to shards."""
        del cut_step
        self.check(poll_interrupts)
        return Go(self._step, 0)

    def conclude(self) -> bool:
        return False

    def missing(self) -> tuple[int, ...]:
        return self._member.missing()

    def unresponsive(self, for_s: float) -> tuple[int, ...]:
        return self._member.unresponsive(for_s)

    def leave(self) -> None:
        self._member.leave()
        self._client.stop()

    def check(self, poll_interrupts: PollInterrupts) -> None:
        """See `Group`: raises what has ended the averaging thread."""
        poll_interrupts()
        self._client.check()

    def _share_scores(self, counters: Tensor, losses: Tensor) -> None:
        self._averaging.outgoing.append(ScoreDelta(self._step, counters.clone(), losses.clone()))
        counters.zero_()
        if (merged := self._averaging.take_merged()) is not None:
            self._state.scores.load(merged, self._step)
