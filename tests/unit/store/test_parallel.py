"""Several transfers at once: order, memory, errors, priority."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator

import pytest

from cpr_trainer.store import in_parallel


def test_results_have_the_order_of_the_items() -> None:
    first_waits = threading.Event()

    def work(number: int) -> int:
        if number == 0:
            assert first_waits.wait()
        if number == 9:
            first_waits.set()
        return number * number

    assert in_parallel(work, range(10), threads=2) == tuple(n * n for n in range(10))


def test_no_items_have_no_results() -> None:
    assert in_parallel(str, ()) == ()


def test_all_threads_work_at_once() -> None:
    together = threading.Barrier(3)  # breaks unless three meet
    in_parallel(lambda _number: together.wait(), range(6), threads=3)


def test_item_is_taken_when_a_thread_is_free() -> None:
    lock = threading.Lock()
    held = most = 0

    def items() -> Iterator[int]:
        nonlocal held, most
        for number in range(50):
            with lock:
                held += 1
                most = max(most, held)
            yield number

    def work(_number: int) -> None:
        nonlocal held
        with lock:
            held -= 1

    in_parallel(work, items(), threads=3)
    assert most <= 3


def test_error_ends_transfers_after_the_running_ones() -> None:
    failed, taken, ended = threading.Event(), [], []
    failing: list[threading.Thread] = []

    def items() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    def work(number: int) -> None:
        if number == 1:
            failing.append(threading.current_thread())
            failed.set()
            raise ZeroDivisionError
        assert failed.wait()
        failing[0].join()  # until then its error may not have been noticed
        ended.append(number)

    with pytest.raises(ZeroDivisionError):
        in_parallel(work, items(), threads=2)
    assert ended == taken[:1] + taken[2:]
    assert len(taken) < 10


def test_error_of_the_items_is_raised() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        in_parallel(str, items())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux schedules threads one by one")
def test_background_threads_preempt_no_thread_and_are_not_starved() -> None:
    def scheduling(_item: int) -> tuple[int, int]:
        return os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    policy, niceness = scheduling(0)
    assert policy != os.SCHED_BATCH
    assert set(in_parallel(scheduling, range(4), background=True)) == {(os.SCHED_BATCH, niceness)}
    assert set(in_parallel(scheduling, range(4))) == {(policy, niceness)}
    assert scheduling(0) == (policy, niceness)
