"""Groups without lockstep over loopback: averages, newcomers, lost members, scores and the last mean."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from cpr_contract.choices import DenseSync, Device
from cpr_contract.env import CONTROL_PORT
from cpr_contract.roster import Counters, Peer, TrainerRoster
from cpr_trainer.exchange.handshake import Identity
from cpr_trainer.trainer.allreduce.group import NO_STATE, Group
from cpr_trainer.trainer.allreduce.listener import PeerListener, PeerLiveness
from cpr_trainer.trainer.async_sync import averaging_server
from cpr_trainer.trainer.async_sync.async_groups import AsyncFollower, AsyncLeader
from cpr_trainer.trainer.async_sync.averaging_state import GAP_STEPS, AveragingState
from cpr_trainer.trainer.control import Finished
from cpr_trainer.trainer.state import DenseState
from support.devices import on_each_device
from support.local_job import small_job
from support.wait_limit import poll_interrupts

HOST, WAIT_S, LAST_STEP = "127.0.0.1", 240.0, 10


@dataclass
class Member:
    """A trainer without shards or data: only the test changes its values."""

    rank: int
    kind: DenseSync = "ShadowMA"
    incarnation: int = 1
    device: Device = "cpu"
    state: DenseState = field(init=False)

    def __post_init__(self) -> None:
        me = Identity("job", "trainer", self.rank, self.incarnation, 1)
        self.listener = PeerListener(me, b"key", HOST, 0, silence_s=5)
        self.liveness = PeerLiveness()
        self.listener.start()
        job = small_job(Path("unused"), samples=100 * LAST_STEP, trainers=3)
        job = replace(job, dense_sync=self.kind, device=self.device)
        self.state = DenseState(job, 100 * LAST_STEP, self.rank)

    @property
    def peer(self) -> Peer:
        return Peer(self.rank, self.incarnation, HOST, self.listener.port - CONTROL_PORT)

    @property
    def parameters(self) -> torch.Tensor:
        return self.state.replica.parameters

    def join(self, roster: TrainerRoster) -> bool:
        own = replace(roster, index=self.rank, incarnation=self.incarnation)
        self.group: Group
        if self.rank == roster.leader:
            self.group = AsyncLeader(self.listener, self.liveness, own, self.kind, self.state)
        else:
            self.group = AsyncFollower(self.listener, self.liveness, own, self.state, lambda: iter(lambda: 0.02, None))
        return self.group.join(self.state, lambda: self.state.begin({}), poll_interrupts)

    def step(self, *scores: torch.Tensor) -> None:
        step = self.state.done + 1
        self.group.announce(step)
        assert self.group.go(0, poll_interrupts).step == step
        self.group.sum((self.state.replica.gradients, *scores), poll_interrupts)
        self.state.done = step

    def halt(self) -> None:
        assert self.state.averaging is not None
        self.state.averaging.halted_step = self.state.done

    @property
    def barrier_step(self) -> int:
        assert self.state.averaging is not None
        return self.state.averaging.barrier_step


def roster_of(members: list[Member], group: int = 1, leader: int = 0) -> TrainerRoster:
    peers = tuple(member.peer for member in members)
    return TrainerRoster(1, Counters(group, group, 1), 0, 1, 1, leader, peers, (), None, 0, 60.0)


def eventually(what: Callable[[], object], why: str) -> None:
    end = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < end, why
        time.sleep(0.01)


def join_all(members: list[Member], roster: TrainerRoster) -> list[bool]:
    with ThreadPoolExecutor(len(members)) as pool:
        return list(pool.map(lambda member: member.join(roster), members, timeout=WAIT_S))


def synced(member: Member) -> Callable[[], bool]:
    """Return whether the member, which takes no steps meanwhile, has a target."""
    assert member.state.averaging is not None
    return lambda: member.state.averaging._target is not None  # type: ignore[union-attr]


@pytest.fixture
def made() -> Iterator[list[Member]]:
    members: list[Member] = []
    yield members
    for member in members:
        if hasattr(member, "group"):
            member.group.leave()
        member.listener.close()


def trio(made: list[Member], kind: DenseSync = "ShadowMA", device: Device = "cpu") -> list[Member]:
    made += [Member(rank, kind, device=device) for rank in range(3)]
    return list(made)


def met(made: list[Member], kind: DenseSync = "ShadowMA", device: Device = "cpu") -> list[Member]:
    """Three members that have joined."""
    members = trio(made, kind, device)
    join_all(members, roster_of(members))
    return members


def test_members_without_a_state_join_and_begin_with_the_same(made: list[Member]) -> None:
    members = trio(made)
    members[0].parameters.fill_(0.5)
    assert join_all(members, roster_of(members)) == [False] * 3
    assert [member.state.done for member in members] == [0] * 3
    assert all(torch.equal(member.parameters, members[0].parameters) for member in members)


@pytest.mark.parametrize("begun", [False, True], ids=["without a state", "with one"])
def test_leader_without_an_address_at_first_is_found(made: list[Member], begun: bool) -> None:  # noqa: FBT001
    members = trio(made)
    for member in members:
        member.state.done = 0 if begun else NO_STATE
    roster = roster_of(members)
    early = replace(roster, trainers=tuple(replace(peer, host="", port_base=0) for peer in roster.trainers))
    with ThreadPoolExecutor(len(members)) as pool:
        met = [pool.submit(member.join, early) for member in members]
        eventually(lambda: all(hasattr(member, "group") for member in members), "all have begun to join")
        for member in members:
            member.group.follow(roster)
        assert [each.result(WAIT_S) for each in met] == [begun] * 3
    eventually(lambda: not members[0].group.missing(), "all have come to the leader")


@on_each_device
def test_copies_are_averaged_without_a_wait(
    made: list[Member], device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(averaging_server, "ROUND_TIMEOUT_S", WAIT_S)  # On a busy machine one may be late.
    members = met(made, device=device)
    eventually(lambda: not members[0].group.missing(), "a round waits for those who are connected")
    for member in members:
        member.parameters.fill_(3.0 * member.rank)
        for _ in range(GAP_STEPS):
            member.step()
    for member in members:
        eventually(synced(member), "a target comes back")
        member.step()
    assert [float(member.parameters[0]) for member in members] == [1.5, 3.0, 4.5], "half way to the mean, 3"
    assert [member.state.averaging.sync_gap for member in members] == [GAP_STEPS + 1] * 3  # type: ignore[union-attr]
    eventually(lambda: members[0].state.reached == GAP_STEPS, "the leader has the step that all have reached")
    assert members[0].state.samples == 100 * GAP_STEPS


@on_each_device
def test_offered_copy_is_on_the_cpu_and_does_not_change(device: Device) -> None:
    parameters = torch.zeros(3, device=device)
    _, copy = AveragingState(parameters, rank=0, trainers=2).take_copy()
    parameters.fill_(1.0)
    assert copy.device.type == "cpu"
    assert not copy.any()


def test_gradients_are_multiplied_by_the_number_of_trainers(made: list[Member]) -> None:
    members = met(made)
    members[1].state.replica.gradients.fill_(2.0)
    members[1].step()
    assert float(members[1].state.replica.gradients[0]) == 6.0


@on_each_device
@pytest.mark.parametrize("kind", ["ShadowMA", "ShadowEASGD"])
def test_lost_member_stops_no_other(made: list[Member], kind: DenseSync, device: Device) -> None:
    members = met(made, kind, device)
    members[2].group.leave()
    members[2].listener.close()
    for member in members[:2]:
        for _ in range(GAP_STEPS):
            member.step()
    for member in members[:2]:
        eventually(synced(member), "those who are left are averaged")
    eventually(lambda: members[0].group.missing() == (2,), "the leader names the missing trainers")
    assert members[0].state.reached == 0, "a step that no trainer has reported is not reached"


def test_averaging_round_does_not_wait_for_a_late_copy(made: list[Member]) -> None:
    members = met(made)
    for member in members[:2]:
        for _ in range(GAP_STEPS):
            member.step()
    for member in members[:2]:
        eventually(synced(member), "the third is connected and offers no copy")


def test_followers_train_on_without_a_leader_and_find_the_next(made: list[Member]) -> None:
    members = met(made)
    for member in members:
        for _ in range(GAP_STEPS):
            member.step()
    eventually(synced(members[1]), "a first average")
    members[0].group.leave()
    members[0].listener.close()
    for _ in range(3):
        members[1].step()
    for member in members[1:]:
        member.group.leave()
    newcomer = Member(0, incarnation=2)
    made.append(newcomer)
    roster = roster_of([newcomer, *members[1:]], group=2, leader=1)
    assert join_all([newcomer, *members[1:]], roster) == [True] * 3
    assert newcomer.state.done == GAP_STEPS, "where its predecessor's last copy was"
    assert newcomer.state.farthest >= GAP_STEPS + 3, "shards may have more: its leader has advanced"
    assert torch.equal(newcomer.parameters, members[1].parameters)
    for _ in range(GAP_STEPS):
        newcomer.step()
    eventually(synced(newcomer), "it takes part")


def test_scores_of_all_reach_the_leader_and_all_trainers(made: list[Member]) -> None:
    members = met(made)

    def score(member: Member, samples: int) -> None:
        scores = member.state.scores
        counters, losses = scores.to_merge()
        counters[-1] += samples
        member.step(counters, losses)
        scores.merge(counters, losses)

    score(members[1], 5)
    score(members[2], 7)
    eventually(lambda: len(members[0].state.averaging.arrived) == 2, "both arrive")  # type: ignore[union-attr]
    score(members[0], 1)
    assert members[0].state.scores.validation.samples == 13
    eventually(lambda: members[1].state.averaging._merged is not None, "the sums come back")  # type: ignore[union-attr]
    score(members[1], 0)
    assert members[1].state.scores.validation.samples == 13
    eventually(lambda: not members[1].state.averaging.outgoing, "what came is not sent again")  # type: ignore[union-attr]


def test_scores_for_a_former_leader_are_not_lost(made: list[Member]) -> None:
    members = met(made)
    later = roster_of(members, group=2, leader=1)
    members[0].group.leave()
    members[0].listener.close()
    scores = members[1].state.scores
    counters, losses = scores.to_merge()
    counters[-1] += 5
    members[1].step(counters, losses)
    scores.merge(counters, losses)
    members[1].group.leave()
    members[1].join(later)
    counters, losses = scores.to_merge()
    members[1].step(counters, losses)
    scores.merge(counters, losses)
    assert scores.validation.samples == 5


def part(member: Member) -> None:
    while True:
        member.group.listen(poll_interrupts)


def test_result_is_the_mean_of_the_last_copies(made: list[Member]) -> None:
    members = met(made)
    for member in members:
        member.parameters.fill_(3.0 * member.rank)
        assert not members[0].group.conclude(), "a trainer trains"
        for _ in range(LAST_STEP):
            member.step()
        member.halt()
    expected = torch.stack([member.parameters for member in members]).mean(dim=0)
    eventually(members[0].group.conclude, "the last copies come")
    assert torch.equal(members[0].parameters, expected)
    assert members[0].group.conclude()
    assert torch.equal(members[0].parameters, expected), "once"
    assert members[0].state.reached == LAST_STEP
    with ThreadPoolExecutor(1) as pool:
        parting = pool.submit(members[0].group.dismiss)
        for member in members[1:]:
            with pytest.raises(Finished):
                part(member)
            member.group.leave()
        parting.result(WAIT_S)


def at(member: Member, step: int) -> Callable[[], bool]:
    """Return whether the member has that barrier."""
    return lambda: member.barrier_step == step


def walk(member: Member, steps: int) -> None:
    for _ in range(steps):
        member.step()


def test_barrier_is_at_the_farthest_trainer(made: list[Member], monkeypatch: pytest.MonkeyPatch) -> None:
    # No round ends before the leader's fourth step, so nothing is blended into what the others come with.
    monkeypatch.setattr(averaging_server, "ROUND_TIMEOUT_S", WAIT_S)
    members = met(made)
    for member, steps in zip(members, (3, 5, 7), strict=True):
        walk(member, steps)
    members[0].halt()
    members[1].halt()
    time.sleep(0.2)
    assert members[0].barrier_step == -1, "one has not halted"
    members[2].parameters.fill_(6.0)  # The copy at the barrier may be taken as soon as its trainer has halted.
    members[2].halt()
    for member in members:
        eventually(at(member, 7), "all have the barrier")
    assert not members[0].group.conclude(), "two are on the way"
    members[1].parameters.fill_(3.0)
    walk(members[1], 2)
    members[1].halt()
    walk(members[0], 4)
    members[0].parameters.fill_(0.0)
    members[0].halt()
    eventually(members[0].group.conclude, "the last copies come")
    assert float(members[0].parameters[0]) == 3.0
    assert members[0].state.reached == 7


def test_trainer_that_trains_on_cancels_the_barrier_and_the_next_is_later(made: list[Member]) -> None:
    members = met(made)
    for member in members:
        walk(member, 2)
        member.halt()
    eventually(members[0].group.conclude, "all have met")
    for member, steps in zip(members, (1, 1, 4), strict=True):
        walk(member, steps)
        member.halt()
        assert not members[0].group.conclude(), "only the first barrier was concluded"
    for member in members:
        eventually(at(member, 6), "all have the barrier")
    assert not members[0].group.conclude()


def test_barrier_moves_to_later_pushes_of_a_rank(made: list[Member]) -> None:
    members = met(made)
    for member in members:
        walk(member, GAP_STEPS)
        member.halt()
    eventually(members[0].group.conclude, "all have met")
    assert members[2].state.averaging is not None
    members[2].state.averaging.halted_step = GAP_STEPS + 1
    for member in members:
        eventually(at(member, GAP_STEPS + 1), "all have the barrier")
    assert not members[0].group.conclude()
