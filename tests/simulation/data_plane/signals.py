"""A simulated kernel: child processes, signals, exit statuses and random bytes."""

from __future__ import annotations

import os
import random
import signal
from collections import defaultdict, deque
from collections.abc import Callable
from types import SimpleNamespace

from simulation.data_plane.clock import Process, Scheduler, Task


class Kernel:
    """`terminate` is called with a process that gets SIGTERM and is not a supervisor."""

    def __init__(self, scheduler: Scheduler, rng: random.Random) -> None:
        self.terminate: Callable[[Process], None] = lambda _process: None
        self._scheduler = scheduler
        self._rng = rng
        self._pending: dict[Process, deque[int]] = defaultdict(deque)
        self._ended: dict[Process, deque[tuple[int, int]]] = defaultdict(deque)
        self._waiting: dict[Process, Task] = {}
        self._supervisors: set[Process] = set()

    def adopt(self, supervisor: Process, child: Process) -> None:
        """Send SIGCHLD to a supervisor when its child ends."""
        self._supervisors.add(supervisor)

        def ended(status: int) -> None:
            self._ended[supervisor].append((child.pid, status))
            self.send(supervisor, signal.SIGCHLD)

        child.at_end.append(ended)

    def send(self, process: Process, number: int) -> None:
        """Send a signal."""
        if number == signal.SIGKILL:
            self._scheduler.kill(process)
        elif process in self._supervisors:
            self._pending[process].append(number)
            if process in self._waiting:
                self._scheduler.wake(self._waiting[process])
        elif not process.dead:
            self.terminate(process)

    # Functions that the product's modules call, by their real names.

    def urandom(self, size: int) -> bytes:
        return self._rng.randbytes(size)

    def getpid(self) -> int:
        return self._me.pid

    def kill(self, pid: int, number: int) -> None:
        self.send(next(each for each in self._scheduler.processes if each.pid == pid), number)

    def waitpid(self, _pid: int, _options: int) -> tuple[int, int]:
        ended = self._ended[self._me]
        return ended.popleft() if ended else (0, 0)

    def pthread_sigmask(self, *_mask: object) -> None:
        pass

    def sigtimedwait(self, _signals: object, timeout_s: float) -> SimpleNamespace | None:
        me, task = self._me, self._scheduler.task
        if not self._pending[me]:
            self._waiting[me] = task
            self._scheduler.park(timeout_s)
            del self._waiting[me]
        return SimpleNamespace(si_signo=self._pending[me].popleft()) if self._pending[me] else None

    @property
    def _me(self) -> Process:
        return self._scheduler.task.process


def status_of(code: int) -> int:
    """Return the status of `waitpid` for an exit code."""
    assert os.waitstatus_to_exitcode(code << 8) == code
    return code << 8
