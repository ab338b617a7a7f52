"""The group protocol over loopback, members in threads: meeting, copying, stepping, losing one and meeting again."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from cpr_contract.codec import to_json
from cpr_contract.env import CONTROL_PORT
from cpr_contract.roster import Counters, Peer, TrainerRoster
from cpr_trainer.exchange.handshake import Identity
from cpr_trainer.trainer.group.follower import Follower
from cpr_trainer.trainer.group.frames import Frame, Kind
from cpr_trainer.trainer.group.leader import Leader
from cpr_trainer.trainer.group.lobby import Hearing, Lobby
from cpr_trainer.trainer.group.meeting import NO_STATE, Hello
from cpr_trainer.trainer.group.protocol import Go, Group
from cpr_trainer.trainer.interrupts import Finished, GroupBroken, Superseded
from support.exchanges import wait_for
from support.patience import attend

_HOST = "127.0.0.1"


@dataclass
class _Replica:
    """A dense state of a few bytes."""

    data: bytes
    done: int = NO_STATE

    def pack(self) -> bytes:
        return self.data

    def unpack(self, data: bytes | bytearray, done: int) -> None:
        self.data, self.done = bytes(data), done


@dataclass
class _Member:
    rank: int
    incarnation: int = 1
    key: bytes = b"key"
    replica: _Replica = field(default_factory=lambda: _Replica(b""))

    def __post_init__(self) -> None:
        me = Identity("job", "trainer", self.rank, self.incarnation, 1)
        self.lobby = Lobby(me, self.key, _HOST, 0, silence_s=5)
        self.hearing = Hearing()
        self.lobby.start()

    @property
    def peer(self) -> Peer:
        return Peer(self.rank, self.incarnation, _HOST, self.lobby.port - CONTROL_PORT)

    def join(self, roster: TrainerRoster) -> Group:
        own = replace(roster, index=self.rank, incarnation=self.incarnation)
        self.group: Group  # Kept: the others' calls end where one lets go of its group.
        if self.rank == roster.leader:
            self.group = Leader(self.lobby, self.hearing, own)
        else:
            self.group = Follower(self.lobby, self.hearing, own, iter(lambda: 0.02, None))
        return self.group

    def meet(self, group: Group) -> bool:
        def provide() -> None:
            self.replica.unpack(b"first", 0)

        return group.meet(self.replica, provide, attend)


def _roster(members: list[_Member], group: int, leader: int = 0) -> TrainerRoster:
    peers = tuple(member.peer for member in members)
    return TrainerRoster(1, Counters(group, group, 1), 0, 1, 1, leader, peers, (), None, 0, 60.0)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture
def members() -> Iterator[list[_Member]]:
    made = [_Member(rank) for rank in range(3)]
    yield made
    for member in made:
        member.lobby.close()


def _all(pool: ThreadPoolExecutor, calls: list[Callable[[], object]]) -> list[Any]:
    futures: list[Future[Any]] = [pool.submit(call) for call in calls]
    return [future.exception(timeout=60) or future.result() for future in futures]


def _listen(group: Group) -> None:
    try:
        while True:
            group.listen(attend)
    finally:
        group.leave()


def _step(group: Group, step: int, value: float) -> tuple[Go, float]:
    tensor = torch.full((1000,), value)
    group.announce(step)
    go = group.go(step + 3, attend)
    group.sum([tensor], attend)
    return go, float(tensor[-1])


def test_members_meet_step_and_finish(threads: ThreadPoolExecutor, members: list[_Member]) -> None:
    roster = _roster(members, group=1)
    groups = [member.join(roster) for member in members]

    met = _all(threads, [lambda m=m, g=g: m.meet(g) for m, g in zip(members, groups, strict=True)])
    assert met == [False] * 3, "nobody brought a state"
    assert [member.replica.data for member in members] == [b"first"] * 3
    assert [member.replica.done for member in members] == [0] * 3

    steps = _all(threads, [lambda g=g, r=r: _step(g, 1, 10.0**r) for r, g in enumerate(groups)])
    assert steps == [(Go(1, 4), 111.0)] * 3

    ends = _all(threads, [groups[0].dismiss, *(lambda g=g: _listen(g) for g in groups[1:])])
    assert [type(end) for end in ends[1:]] == [Finished, Finished]


def test_the_most_advanced_follower_gives_its_state_to_all(threads: ThreadPoolExecutor, members: list[_Member]) -> None:
    for member, done in zip(members, (7, 8, NO_STATE), strict=True):
        member.replica.unpack(b"state %d" % done, done)
    roster = _roster(members, group=5)

    met = _all(threads, [lambda m=m: m.meet(m.join(roster)) for m in members])

    assert met == [True] * 3
    assert [member.replica.data for member in members] == [b"state 8"] * 3


def test_survivors_go_on_with_a_newcomer(threads: ThreadPoolExecutor, members: list[_Member]) -> None:
    first = _roster(members, group=1)
    groups = [member.join(first) for member in members]
    _all(threads, [lambda m=m, g=g: m.meet(g) for m, g in zip(members, groups, strict=True)])
    for member in members:
        member.replica.done = 4
    members[0].lobby.close()  # the leader is gone

    broken = _all(threads, [lambda g=g: _step(g, 5, 1.0) for g in groups[1:]])
    assert [type(error) for error in broken] == [GroupBroken, GroupBroken]
    for group in groups[1:]:
        group.leave()

    members[0] = _Member(0, incarnation=2)
    second = _roster(members, group=2, leader=1)
    groups = [member.join(second) for member in members]
    met = _all(threads, [lambda m=m, g=g: m.meet(g) for m, g in zip(members, groups, strict=True)])
    assert met == [True] * 3
    assert members[0].replica.done == 4
    steps = _all(threads, [lambda g=g: _step(g, 5, 1.0) for g in groups])
    assert [total for _, total in steps] == [3.0] * 3


def test_words_of_a_connection_that_was_given_up_come_late(threads: ThreadPoolExecutor, members: list[_Member]) -> None:
    leader, early, late = members
    roster = _roster(members, group=1)
    led = leader.join(roster)
    given_up = early.lobby.dial(leader.peer)
    hello = Frame(Kind.HELLO, early.rank, payload=to_json(Hello(early.rank, 1, 1, 1, NO_STATE)).encode())
    first = [threads.submit(lambda m=m, g=g: m.meet(g)) for m, g in ((leader, led), (early, early.join(roster)))]
    wait_for(lambda: led.absent() == (late.rank,))
    given_up.send(hello)
    early.lobby.drop(given_up)

    met = _all(threads, [*(future.result for future in first), lambda: late.meet(late.join(roster))])
    assert met == [False] * 3


def test_a_leader_that_had_no_address_at_first_is_found(threads: ThreadPoolExecutor, members: list[_Member]) -> None:
    roster = _roster(members, group=1)
    early = replace(roster, trainers=tuple(replace(peer, host="", port_base=0) for peer in roster.trainers))
    groups = [member.join(early) for member in members]
    met = [threads.submit(lambda m=m, g=g: m.meet(g)) for m, g in zip(members, groups, strict=True)]
    wait_for(lambda: all(group.absent() for group in groups))
    for group in groups:
        group.follow(roster)
    assert [each.result(timeout=60) for each in met] == [False] * 3


def test_an_older_incarnation_is_told_to_step_aside(threads: ThreadPoolExecutor) -> None:
    leader, stale, fresh = _Member(0), _Member(1, incarnation=1), _Member(1, incarnation=2)
    told = threads.submit(lambda: stale.meet(stale.join(_roster([leader, stale], group=1))))
    roster = _roster([leader, fresh], group=2)
    led = threads.submit(lambda: leader.meet(leader.join(roster)))

    assert isinstance(told.exception(timeout=60), Superseded)
    fresh.meet(fresh.join(roster))
    assert led.result(timeout=60) is False
    for member in (leader, stale, fresh):
        member.lobby.close()


def test_a_stranger_without_the_key_is_not_let_in(threads: ThreadPoolExecutor) -> None:
    leader, stranger, friend = _Member(0), _Member(1, key=b"guess"), _Member(1)
    roster = _roster([leader, friend], group=1)
    led = threads.submit(lambda: leader.meet(leader.join(roster)))
    attempts = iter(range(3))

    def give_up() -> None:
        if next(attempts, None) is None:
            raise InterruptedError

    refused = stranger.join(roster)
    with pytest.raises(InterruptedError):
        refused.meet(stranger.replica, attend, give_up)
    assert not led.done()
    friend.meet(friend.join(roster))
    assert led.result(timeout=60) is False
    for member in (leader, stranger, friend):
        member.lobby.close()


def _listening_ports() -> set[int]:
    """The ports on which this process listens. A TCPStore of torch listens by IPv6, for both versions."""
    inodes = {str(fd.readlink()) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()}
    tables = (Path("/proc/self/net", name).read_text().splitlines()[1:] for name in ("tcp", "tcp6"))
    lines = [line.split() for table in tables for line in table]
    return {int(cell[1].split(":")[1], 16) for cell in lines if cell[3] == "0A" and f"socket:[{cell[9]}]" in inodes}


def _is_open_store(port: int) -> bool:
    """Whether somebody who proved nothing can tell a group's members an address there."""
    try:
        store = torch.distributed.TCPStore(  # type: ignore[attr-defined]  # public, though not marked as exported
            _HOST, port, is_master=False, timeout=timedelta(seconds=1), wait_for_workers=False, use_libuv=False
        )
        store.set("address", "mine")
        return bool(store.get("address") == b"mine")
    except RuntimeError:
        return False


def test_nobody_without_the_key_reaches_where_members_learn_their_addresses(threads: ThreadPoolExecutor) -> None:
    leader, friend = _Member(0), _Member(1)
    before = _listening_ports()
    over = threading.Event()

    def go_on() -> None:
        attend()
        if over.is_set():
            raise InterruptedError

    led = threads.submit(lambda: leader.join(_roster([leader, friend], 1)).meet(leader.replica, lambda: None, go_on))
    channel = friend.lobby.dial(leader.peer)
    channel.send(Frame(Kind.HELLO, 1, payload=to_json(Hello(1, 1, 1, 1, NO_STATE)).encode()))
    try:
        while (heard := friend.lobby.inbox.take(1.0)) is None or not heard.frame or heard.frame.kind is not Kind.FORM:
            attend()
        probes: dict[int, Future[bool]] = {}
        end_s = time.monotonic() + 4
        while time.monotonic() < end_s:  # the group is being built
            # Groups of earlier tests may still listen, and answer nobody.
            for port in _listening_ports() - before - probes.keys():
                probes[port] = threads.submit(_is_open_store, port)
            time.sleep(0.05)
        assert probes
        # Who is no store does not answer, and the probe ends with the group.
        assert not any(probe.result() for probe in probes.values() if probe.done())
    finally:
        over.set()
        assert led.exception(60)
        for member in (leader, friend):
            member.lobby.close()


def test_a_closed_lobby_leaves_no_thread_behind() -> None:
    before = set(threading.enumerate())
    member = _Member(0)
    started = set(threading.enumerate()) - before
    assert started
    member.lobby.close()
    for thread in started:
        thread.join(10)
    assert not [thread.name for thread in started if thread.is_alive()]
