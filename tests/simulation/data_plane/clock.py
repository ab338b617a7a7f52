"""One thread, one clock and one seed: each thread of a process is a task, which runs until it waits.

Tasks are greenlets, so code that blocks runs as it is. The seed selects the next of all tasks that can run. Time
passes only where none could.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from itertools import count

from greenlet import getcurrent, greenlet


class Killed(BaseException):
    """The death of a process, in each of its tasks. Nothing in it may catch this."""


class Process:
    """Tasks that die together, on one host. `paused`: none of them runs, as after SIGSTOP.

    `at_end` is called once when it is dead, with the status as `waitpid` has it.
    """

    def __init__(self, pid: int, name: str, host: str) -> None:
        self.pid, self.name, self.host = pid, name, host
        self.dead = False
        self.paused = False
        self.tasks: dict[Task, None] = {}
        self.held: list[Task] = []
        self.at_end: list[Callable[[int], None]] = []


class Task:
    """One thread of a process."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.glet: greenlet | None = None
        self.parked = False
        self.woken = False
        self.wait_number = 0  # number of the present wait, which a time-out compares with its own
        self.done = False
        self.joiners: list[Task] = []


class Scheduler:
    """Tasks and timed events. `rng` chooses among the tasks that could run."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now = 1000.0
        self.current: Task | None = None
        self.failure: BaseException | None = None
        self.switches = 0
        self.processes: list[Process] = []
        self._scheduler = getcurrent()
        self._ready: list[Task] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count(1)

    def clock(self) -> float:
        """The virtual time in seconds, in the place of `time.monotonic`."""
        return self.now

    @property
    def task(self) -> Task:
        """The running task."""
        assert self.current is not None, "only a task may wait"
        return self.current

    def process(self, name: str, host: str) -> Process:
        """Return a process that has no task yet."""
        self.processes.append(Process(next(self._numbers), name, host))
        return self.processes[-1]

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Do something at a time, between two tasks."""
        heapq.heappush(self._events, (when, next(self._numbers), action))

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something some seconds from now."""
        self.at(self.now + delay_s, action)

    def spawn(self, process: Process, target: Callable[[], object]) -> Task:
        """Begin a task of a process."""
        task = Task(process)

        def main() -> None:
            try:
                target()
            except Killed:
                pass
            except BaseException as error:  # noqa: BLE001 -- the caller that runs the cluster raises it
                self.failure = self.failure or error
            finally:
                task.done = True
                process.tasks.pop(task, None)
                for joiner in task.joiners:
                    self.wake(joiner)

        task.glet = greenlet(main, self._scheduler)
        process.tasks[task] = None
        self._ready.append(task)
        return task

    def park(self, timeout_s: float | None = None) -> bool:
        """Let the running task wait until it is woken; False if the time was over first."""
        task = self.task
        if task.process.dead:
            raise Killed
        task.wait_number += 1
        task.parked, task.woken = True, False
        if timeout_s is not None:
            wait_number = task.wait_number
            self.after(max(timeout_s, 0.0), lambda: self._time_out(task, wait_number))
        self._scheduler.switch()
        if task.process.dead:
            raise Killed
        return task.woken

    def wake(self, task: Task) -> None:
        """Resume a waiting task."""
        if task.parked:
            task.parked, task.woken = False, True
            self._ready.append(task)

    def sleep(self, delay_s: float) -> None:
        """Let the running task wait for so long."""
        self.park(delay_s)

    def yield_now(self) -> None:
        """Let others go first, perhaps."""
        task = self.task
        task.parked = True
        self.wake(task)
        self._scheduler.switch()
        if task.process.dead:
            raise Killed

    def pause(self, process: Process, for_s: float) -> None:
        """Let nothing of a process run for so long."""
        process.paused = True
        self.after(for_s, lambda: self._resume(process))

    def kill(self, process: Process, status: int = 9) -> None:
        """End a process; what it waits for does not come any more."""
        if not process.dead:
            process.dead = True
            self.after(0.0, lambda: self._record_exit(process, status))

    def run(self, until: Callable[[], bool], deadline: float) -> bool:
        """Let time pass until a condition holds; False if it does not by then. Raises what a task raised."""
        while True:
            while self._ready:
                self._switch_to(self._take())
            if self.failure is not None:
                raise self.failure
            if until():
                return True
            if self._events and self._events[0][0] <= deadline:
                self.now, _, action = heapq.heappop(self._events)
                action()
            else:
                self.now = deadline
                return False

    def close(self) -> None:
        """End all tasks."""
        for process in self.processes:
            process.dead = True
            self._end_tasks(process)

    def _take(self) -> Task:
        ready = self._ready
        at = self.rng.randrange(len(ready)) if len(ready) > 1 else 0
        ready[at], ready[-1] = ready[-1], ready[at]
        return ready.pop()

    def _switch_to(self, task: Task) -> None:
        if task.done:
            return
        if task.process.paused and not task.process.dead:
            task.process.held.append(task)
            return
        self.switches += 1
        self.current = task
        assert task.glet is not None
        task.glet.switch()
        self.current = None

    def _time_out(self, task: Task, wait_number: int) -> None:
        if task.parked and task.wait_number == wait_number:
            task.parked = False
            self._ready.append(task)

    def _resume(self, process: Process) -> None:
        process.paused = False
        self._ready += process.held
        process.held.clear()

    def _record_exit(self, process: Process, status: int) -> None:
        self._end_tasks(process)
        for action in process.at_end:
            action(status)

    def _end_tasks(self, process: Process) -> None:
        for task in tuple(process.tasks):
            assert task.glet is not None
            self.current = task
            task.glet.throw(Killed)
            self.current, task.done = None, True
