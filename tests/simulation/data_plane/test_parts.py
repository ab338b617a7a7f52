"""What a cluster is made of does what it is there for."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from cpr_trainer.store import StoreUnreachableError
from simulation.data_plane.clock import Scheduler
from simulation.data_plane.network import Network, Port, Socket
from simulation.data_plane.patches import Sockets
from simulation.data_plane.storage import SimulatedStore
from simulation.data_plane.threads import Threads


def scheduler(seed: int = 1) -> Scheduler:
    return Scheduler(random.Random(seed))


def run(cluster: Scheduler, *targets: Callable[[], object], for_s: float = 10.0) -> float:
    """Run each in a process of its own, until nothing happens any more; the seconds that passed."""
    began = cluster.now
    for number, target in enumerate(targets):
        cluster.spawn(cluster.process(f"p{number}", f"host{number}"), target)
    cluster.run(lambda: not any(each.tasks for each in cluster.processes), began + for_s)
    return cluster.now - began


def test_the_seed_alone_says_in_which_order_tasks_go_on() -> None:
    def order(seed: int) -> list[int]:
        cluster, found = scheduler(seed), list[int]()
        run(cluster, *[lambda number=number: found.append(number) for number in range(8)])
        return found

    assert order(1) == order(1) != order(2)


def test_a_process_that_is_killed_unwinds_and_does_nothing_more() -> None:
    cluster, done = scheduler(), list[str]()
    process = cluster.process("one", "host")
    process.at_end.append(lambda status: done.append(f"status {status}"))

    def work() -> None:
        try:
            cluster.sleep(1.0)
            done.append("work")
        finally:
            done.append("finally")

    cluster.spawn(process, work)
    cluster.after(0.5, lambda: cluster.kill(process))
    cluster.run(lambda: False, cluster.now + 5)
    assert done == ["finally", "status 9"]


def test_a_process_that_is_stopped_goes_on_later() -> None:
    cluster, woken = scheduler(), list[float]()
    process = cluster.process("one", "host")

    def work() -> None:
        cluster.sleep(1.0)
        woken.append(cluster.now)

    cluster.spawn(process, work)
    cluster.freeze(process, 3.0)
    cluster.run(lambda: False, cluster.now + 5)
    assert woken == [1004.0], "it had not even begun"


def test_a_condition_lets_one_in_and_wakes_those_that_wait() -> None:
    cluster, found = scheduler(), list[object]()
    changed = Threads(cluster).Condition()

    def wait() -> None:
        with changed, changed:
            found.append(changed.wait_for(lambda: len(found) == 1, 5.0))

    def tell() -> None:
        cluster.sleep(1.0)
        with changed:
            found.append("told")
            changed.notify_all()

    assert run(cluster, wait, tell) == 1.0
    assert found == ["told", True]
    with pytest.raises(AssertionError, match="only a task may wait"):
        cluster.park()


def test_a_lock_that_a_dead_process_has_left_locked_keeps_nobody() -> None:
    """Killed between two lines, it leaves no `with`; its other tasks unwind all the same."""
    cluster, ended = scheduler(), list[str]()
    process, lock = cluster.process("one", "host"), Threads(cluster).Lock()

    def die() -> None:
        lock.__enter__()
        cluster.kill(process)
        cluster.sleep(1.0)

    def unwind() -> None:
        try:
            cluster.sleep(1.0)
        finally:
            ended.append("unwinds")
            with lock:
                ended.append("goes on")

    cluster.spawn(process, die)
    cluster.spawn(process, unwind)
    cluster.run(lambda: False, cluster.now + 2)
    assert ended == ["unwinds"]


def connected(seed: int = 1) -> tuple[Network, Callable[..., float]]:
    cluster = scheduler(seed)
    network = Network(cluster, random.Random(seed))
    return network, lambda *targets: run(cluster, *targets)


def test_bytes_arrive_in_their_order_however_they_are_cut() -> None:
    network, result = connected()
    data, got = bytes(range(256)) * 20, bytearray()
    port = Port(network, ("host0", 7))
    listener = port.handle()

    def serve() -> None:
        while not port.queue:
            network.scheduler.sleep(0.01)
        accepted, _ = listener.accept()
        while piece := accepted.recv(1000):
            got.extend(piece)

    def call() -> None:
        socket = Sockets(network).create_connection(("host0", 7), 1.0)
        left = memoryview(data)
        while left:
            left = left[socket.sendmsg([left]) :]
        socket.close()

    result(serve, call)
    assert bytes(got) == data


@pytest.mark.parametrize(("fault", "error"), [("none", ConnectionRefusedError), ("cut off", TimeoutError)])
def test_a_call_is_refused_or_remains_without_an_answer(fault: str, error: type[Exception]) -> None:
    network, result = connected()
    if fault == "cut off":
        network.cut_off("nowhere")
    raised = list[type]()

    def call() -> None:
        try:
            Sockets(network).create_connection(("nowhere", 7), 1.0)
        except OSError as met:
            raised.append(type(met))

    result(call)
    assert raised == [error]
    assert not network.open


def test_both_ends_see_a_reset_and_neither_sees_a_connection_that_is_half_open() -> None:
    network, result = connected()
    port, seen = Port(network, ("host0", 7)), list[object]()
    port.handle()

    def read(socket: Socket) -> None:
        socket.settimeout(1.0)
        try:
            seen.append(socket.recv(1))
        except OSError as met:
            seen.append(type(met))

    def call() -> None:
        for fault in ("half open", "reset"):
            socket = Sockets(network).create_connection(("host0", 7), 1.0)
            other = port.queue.pop()
            if fault == "reset":
                socket.reset()
                other.reset()
            else:
                socket.mute = True
                assert socket.sendmsg([b"lost"]) == 4
            read(socket)
            read(other)

    result(call)
    assert seen == [TimeoutError, TimeoutError, ConnectionResetError, ConnectionResetError]


def test_what_a_dead_process_asked_of_the_store_is_done_and_an_answer_may_be_lost() -> None:
    cluster, met = scheduler(), Counter[str]()
    store = SimulatedStore(cluster, random.Random(1), met)
    process = cluster.process("one", "host")
    cluster.spawn(process, lambda: store.put("late", b"1"))
    cluster.after(0.0001, lambda: cluster.kill(process))
    cluster.run(lambda: False, cluster.now + 1)
    store.loses = 1.0

    def put() -> None:
        with pytest.raises(StoreUnreachableError):
            store.put("unheard", b"2")

    run(cluster, put)
    assert store.objects == {"late": b"1", "unheard": b"2"}
    assert met == {"a request was done after its sender had died": 1, "an answer of the store was lost": 1}
