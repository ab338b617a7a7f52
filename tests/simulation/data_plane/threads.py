"""`threading` and `concurrent.futures` for simulated tasks: threads, conditions, events, a pool."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace
from typing import Any

from simulation.data_plane.clock import Scheduler, Task


def threads(scheduler: Scheduler) -> SimpleNamespace:
    """The names of `threading`. A process that is killed between two lines leaves its locks locked."""

    def thread(
        target: Callable[..., object],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **_names: object,
    ) -> Thread:
        return Thread(scheduler, lambda: target(*args, **(kwargs or {})))

    condition = partial(Condition, scheduler)
    return SimpleNamespace(Thread=thread, Lock=condition, Condition=condition, Event=partial(Event, scheduler))


class Thread:
    """A task of the process that starts it."""

    def __init__(self, scheduler: Scheduler, target: Callable[[], object]) -> None:
        self._scheduler = scheduler
        self._target = target
        self._task: Task | None = None

    def start(self) -> None:
        self._task = self._scheduler.spawn(self._scheduler.task.process, self._target)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.done

    def join(self) -> None:
        while self._task is not None and not self._task.done:
            self._task.joiners.append(self._scheduler.task)
            self._scheduler.park()


class Event:
    """A flag that tasks wait for."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._set = False
        self._waiting: list[Task] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        for task in self._waiting:
            self._scheduler.wake(task)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            task = self._scheduler.task
            self._waiting.append(task)
            self._scheduler.park(timeout)
            self._waiting.remove(task)
        return self._set


class Condition:
    """A lock that one task holds, as often as it likes, and that tasks wait on."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._owner: Task | None = None
        self._depth = 0
        self._waiting: list[Task] = []
        self._locked_out: list[Task] = []

    def __enter__(self) -> None:
        self._acquire(1)

    def __exit__(self, *_error: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._release()

    def wait(self, timeout: float | None = None) -> bool:
        task, depth = self._scheduler.task, self._depth
        self._waiting.append(task)
        self._depth = 0
        self._release()
        try:
            return self._scheduler.park(timeout)
        finally:
            self._waiting.remove(task)
            if not task.process.dead:
                self._acquire(depth)
            else:
                self._depth = 1  # so that leaving the `with` changes nothing

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        end = None if timeout is None else self._scheduler.now + timeout
        while not (found := predicate()):
            left = None if end is None else end - self._scheduler.now
            if left is not None and left <= 0:
                return found
            self.wait(left)
        return found

    def notify_all(self) -> None:
        for task in self._waiting:
            self._scheduler.wake(task)

    def _acquire(self, depth: int) -> None:
        task = self._scheduler.current
        while self._depth and self._owner is not task:
            assert task is not None, "held by a task that waits"
            self._locked_out.append(task)
            self._scheduler.park()
        self._owner = task
        self._depth += depth

    def _release(self) -> None:
        self._owner = None
        for task in self._locked_out:
            self._scheduler.wake(task)
        self._locked_out.clear()


class Pool:
    """A pool of threads that are always fast enough: what it is given is done at once."""

    def __init__(self, *_arguments: object, **_options: object) -> None:
        pass

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(work(*arguments))
        return future

    def shutdown(self, **_options: object) -> None:
        pass
