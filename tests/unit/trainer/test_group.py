"""The group over loopback, members in threads: joining, copying, stepping, losing one and joining again."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
import torch

from cpr_contract.codec import to_json
from cpr_trainer.trainer.allreduce.group import NO_STATE, Go, Group, Hello, agree_on_state, missing_steps
from cpr_trainer.trainer.allreduce.transport import Frame, Kind
from cpr_trainer.trainer.control import Finished, GroupBroken, Superseded
from support.control_group import HOST, Member, roster_of
from support.exchanges import wait_for
from support.wait_limit import poll_interrupts


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture
def members(request: pytest.FixtureRequest) -> Iterator[list[Member]]:
    """Three members, at the address of the parameter if the test has one."""
    made = [Member(rank, host=getattr(request, "param", HOST)) for rank in range(3)]
    yield made
    for member in made:
        member.listener.close()


def _all(pool: ThreadPoolExecutor, calls: list[Callable[[], object]]) -> list[Any]:
    futures: list[Future[Any]] = [pool.submit(call) for call in calls]
    return [future.exception() or future.result() for future in futures]


def _listen(group: Group) -> None:
    try:
        while True:
            group.listen(poll_interrupts)
    finally:
        group.leave()


def _step(group: Group, step: int, value: float) -> tuple[Go, float]:
    tensor = torch.full((1000,), value)
    group.announce(step)
    go = group.go(step + 3, poll_interrupts)
    group.sum([tensor], poll_interrupts)
    return go, float(tensor[-1])


@pytest.mark.parametrize("members", [HOST, "::1"], indirect=True)
def test_members_join_step_and_finish(threads: ThreadPoolExecutor, members: list[Member]) -> None:
    roster = roster_of(members, group=1)
    groups = [member.make_group(roster) for member in members]

    met = _all(threads, [lambda m=m, g=g: m.join(g) for m, g in zip(members, groups, strict=True)])
    assert met == [False] * 3, "no member had a state"
    assert [member.replica.data for member in members] == [b"first"] * 3
    assert [member.replica.done for member in members] == [0] * 3

    steps = _all(threads, [lambda g=g, r=r: _step(g, 1, 10.0**r) for r, g in enumerate(groups)])
    assert steps == [(Go(1, 4), 111.0)] * 3

    ends = _all(threads, [groups[0].dismiss, *(lambda g=g: _listen(g) for g in groups[1:])])
    assert [type(end) for end in ends[1:]] == [Finished, Finished]


def test_members_learn_the_named_pin_until_they_join_again(threads: ThreadPoolExecutor, members: list[Member]) -> None:
    roster = roster_of(members, group=1)
    groups = [member.make_group(roster) for member in members]

    def join() -> None:
        _all(threads, [lambda m=m, g=g: m.join(g) for m, g in zip(members, groups, strict=True)])

    join()
    groups[0].name_pin(7)
    for group in groups[1:]:
        while not group.pin:
            group.listen(poll_interrupts)
    assert [group.pin for group in groups] == [7] * 3
    join()
    assert [group.pin for group in groups[1:]] == [0] * 2


def test_most_advanced_follower_gives_its_state_to_all(threads: ThreadPoolExecutor, members: list[Member]) -> None:
    for member, done in zip(members, (7, 8, NO_STATE), strict=True):
        member.replica.unpack(b"state %d" % done, done)
    roster = roster_of(members, group=5)

    met = _all(threads, [lambda m=m: m.join(m.make_group(roster)) for m in members])

    assert met == [True] * 3
    assert [member.replica.data for member in members] == [b"state 8"] * 3


def test_survivors_continue_with_a_new_member(threads: ThreadPoolExecutor, members: list[Member]) -> None:
    first = roster_of(members, group=1)
    groups = [member.make_group(first) for member in members]
    _all(threads, [lambda m=m, g=g: m.join(g) for m, g in zip(members, groups, strict=True)])
    for member in members:
        member.replica.done = 4
    members[0].listener.close()  # the leader is gone

    broken = _all(threads, [lambda g=g: _step(g, 5, 1.0) for g in groups[1:]])
    assert [type(error) for error in broken] == [GroupBroken, GroupBroken]
    for group in groups[1:]:
        group.leave()

    members[0] = Member(0, incarnation=2)
    second = roster_of(members, group=2, leader=1)
    groups = [member.make_group(second) for member in members]
    met = _all(threads, [lambda m=m, g=g: m.join(g) for m, g in zip(members, groups, strict=True)])
    assert met == [True] * 3
    assert members[0].replica.done == 4
    steps = _all(threads, [lambda g=g: _step(g, 5, 1.0) for g in groups])
    assert [total for _, total in steps] == [3.0] * 3


def test_late_hello_of_an_abandoned_connection_is_replaced(threads: ThreadPoolExecutor, members: list[Member]) -> None:
    leader, early, late = members
    roster = roster_of(members, group=1)
    led = leader.make_group(roster)
    given_up = early.listener.connect_to(leader.peer)
    hello = Frame(Kind.HELLO, early.rank, payload=to_json(Hello(early.rank, 1, 1, 1, NO_STATE)).encode())
    first = [threads.submit(lambda m=m, g=g: m.join(g)) for m, g in ((leader, led), (early, early.make_group(roster)))]
    wait_for(lambda: led.missing() == (late.rank,))
    given_up.send(hello)
    early.listener.drop(given_up)

    met = _all(threads, [*(future.result for future in first), lambda: late.join(late.make_group(roster))])
    assert met == [False] * 3


def test_go_that_arrives_at_a_check_is_taken_later(threads: ThreadPoolExecutor, members: list[Member]) -> None:
    """A follower announces before its push, and looks at the group while it waits for a shard."""
    members = members[:2]
    roster = roster_of(members, group=1)
    leader, follower = groups = [member.make_group(roster) for member in members]
    _all(threads, [lambda m=m, g=g: m.join(g) for m, g in zip(members, groups, strict=True)])
    for group in groups:
        group.announce(1)
    leader.go(5, lambda: None)
    while not members[1].listener.inbox._queue.qsize():
        time.sleep(0.01)
    follower.check(lambda: None)
    assert follower.go(0, lambda: None).cut_step == 5


def test_leader_without_an_address_at_first_is_found(threads: ThreadPoolExecutor, members: list[Member]) -> None:
    roster = roster_of(members, group=1)
    early = replace(roster, trainers=tuple(replace(peer, host="", port_base=0) for peer in roster.trainers))
    groups = [member.make_group(early) for member in members]
    met = [threads.submit(lambda m=m, g=g: m.join(g)) for m, g in zip(members, groups, strict=True)]
    wait_for(lambda: all(group.missing() for group in groups))
    for group in groups:
        group.follow(roster)
    assert [each.result() for each in met] == [False] * 3


def test_older_incarnation_is_superseded(threads: ThreadPoolExecutor) -> None:
    leader, stale, fresh = Member(0), Member(1, incarnation=1), Member(1, incarnation=2)
    superseded = threads.submit(lambda: stale.join(stale.make_group(roster_of([leader, stale], group=1))))
    roster = roster_of([leader, fresh], group=2)
    led = threads.submit(lambda: leader.join(leader.make_group(roster)))

    assert isinstance(superseded.exception(), Superseded)
    fresh.join(fresh.make_group(roster))
    assert led.result() is False
    for member in (leader, stale, fresh):
        member.listener.close()


def test_caller_without_the_key_is_not_admitted(threads: ThreadPoolExecutor) -> None:
    leader, stranger, friend = Member(0), Member(1, key=b"guess"), Member(1)
    roster = roster_of([leader, friend], group=1)
    led = threads.submit(lambda: leader.join(leader.make_group(roster)))
    attempts = iter(range(3))

    def give_up() -> None:
        if next(attempts, None) is None:
            raise InterruptedError

    refused = stranger.make_group(roster)
    with pytest.raises(InterruptedError):
        refused.join(stranger.replica, poll_interrupts, give_up)
    assert not led.done()
    friend.join(friend.make_group(roster))
    assert led.result() is False
    for member in (leader, stranger, friend):
        member.listener.close()


def test_closed_listener_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    member = Member(0)
    started = set(threading.enumerate()) - before
    assert started
    member.listener.close()
    for thread in started:
        thread.join()
    assert not [thread.name for thread in started if thread.is_alive()]


def _hellos(*done: int) -> tuple[Hello, ...]:
    return tuple(Hello(rank, 1, 1, 1, step) for rank, step in enumerate(done))


@pytest.mark.parametrize(
    ("done", "source", "copy_to"),
    [
        ((5, 5, 5), 1, ()),  # no member is behind
        ((5, 4, 5), 0, (1,)),  # the leader copies; of equals the lowest rank gives
        ((6, 5, NO_STATE), 0, (1, 2)),
        ((NO_STATE, 0, NO_STATE), 1, (0, 2)),  # a fresh state of step 0 is a state
        ((NO_STATE, NO_STATE, NO_STATE), None, (0, 2)),
    ],
)
def test_most_advanced_state_is_copied_to_all_behind(
    done: tuple[int, ...], source: int | None, copy_to: tuple[int, ...]
) -> None:
    for hellos in permutations(_hellos(*done)):
        agreement = agree_on_state(hellos, leader=1)

        assert (agreement.source, tuple(sorted(agreement.copy_to))) == (source, copy_to)
        assert agreement.done == max(done)


@pytest.mark.parametrize(
    ("done", "pushed", "applied", "steps"),
    [
        (9, 9, (9, 9), ()),
        (9, 8, (8, 8), (9,)),  # its all-reduce of 9 failed, another's did not
        (8, 9, (9, 8), ()),  # the one that completed 9 is gone: 9 comes again anyway
        (9, None, (9, 8), (9,)),  # killed between its pushes to two shards
        (9, None, (9, 9), ()),
        (9, None, (9, 2), (7, 8, 9)),  # a shard that went back: no more than was in flight
        (1, None, (0, 0), (1,)),
        (0, None, (0, 0), ()),
    ],
)
def test_missing_steps_are_computed_again(
    done: int, pushed: int | None, applied: tuple[int, ...], steps: tuple[int, ...]
) -> None:
    assert tuple(missing_steps(done, pushed, applied, window=2)) == steps
