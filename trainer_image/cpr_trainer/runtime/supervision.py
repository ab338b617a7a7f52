"""Restarts a member's process inside its pod: a supervisor forks the process that works, and another one after a crash.

The supervisor has one thread. All that the next process needs to continue lies in memory that outlives a process; that
memory begins with a control block, which the supervisor reads. It also passes on the standard error of its processes,
and stores the end of it when one of them ends, in a process of its own: the store may hang.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from time import monotonic
from typing import NoReturn

from cpr_contract.limits import MAX_RESTART_TIMES
from cpr_contract.reports import ExitCode, Problem
from cpr_trainer.arrays import Ints
from cpr_trainer.runtime.last_output import LastOutput, OutputRecorder
from cpr_trainer.runtime.termination import end_with

_LOG = logging.getLogger(__name__)

#: The number of processes with remembered end and restart times.
_REMEMBERED = MAX_RESTART_TIMES
_OWNER, _NUMBER, _CONTAINER_RESTARTS, _MEMBER, _INCARNATION, _TICKS, _DOWN, _TICKED, _ENDED = range(9)
_DOWNTIME = _ENDED + _REMEMBERED
#: The first word that subclasses may use.
FIRST_FREE_WORD = _DOWNTIME + _REMEMBERED

#: A pod ends after this many crashes within this many seconds: the contents of its memory may be the cause.
MOST_CRASHES, WITHIN_S = 3, 60.0
#: Consecutive looks without a tick after which a process counts as hung. Looks are counted instead of seconds, because
#: a suspended pod looks at nothing.
_LOOKS = 5
_SIGNALS = frozenset({signal.SIGTERM, signal.SIGCHLD})
#: Seconds to store the last output of a process, and seconds for which a pod that ends waits for that.
_STORE_S, _LAST_STORE_S = 30, 2.0
#: The niceness of that work while the next process recovers: it takes next to nothing of its processor.
_LOWEST_PRIORITY = 19
_PDEATHSIG = 1
#: Reported by a pod that ends because its memory cannot be used.
UNUSABLE_MEMORY = "what is kept in memory does not fit this job, or is damaged"


class ControlBlock:
    """The words that a supervisor and its processes share. words: int64, zero in new memory.

    `owner` identifies the memory. Times are of the machine's monotonic clock, which is the same in all processes.
    """

    def __init__(self, words: Ints, owner: str) -> None:
        self._words = words
        self._owner = int.from_bytes(hashlib.sha256(owner.encode()).digest()[:7], "little")

    def initialise(self) -> None:
        """Write the owner into new memory."""
        self._words[_OWNER] = self._owner

    @property
    def usable(self) -> bool:
        """True if another process may continue with the memory: it is the owner's, and its contents are whole."""
        return int(self._words[_OWNER]) == self._owner

    @property
    def process_number(self) -> int:
        """Counts the processes, from 1; 0 before the first."""
        return int(self._words[_NUMBER])

    @property
    def container_restarts(self) -> int:
        """Counts the processes that ended with their container, before another container took over the memory."""
        return int(self._words[_CONTAINER_RESTARTS])

    @property
    def member(self) -> tuple[int, int] | None:
        """The index and the incarnation of the member that its processes are; None before the first roster."""
        place = int(self._words[_MEMBER])
        return (place - 1, int(self._words[_INCARNATION])) if place else None

    def identify(self, index: int, incarnation: int) -> None:
        """Record the member that the current process is."""
        self._words[_INCARNATION], self._words[_MEMBER] = incarnation, index + 1

    def begin_process(self) -> None:
        """Count a process that starts."""
        self._words[_TICKS] = 0
        self._words[_NUMBER] += 1

    @property
    def ticks(self) -> int:
        """Rises while the current process makes progress; 0 while it starts."""
        return int(self._words[_TICKS])

    def tick(self) -> None:
        """Record that the current process makes progress."""
        self._words[_TICKS] += 1
        self._words[_TICKED] = int(monotonic() * 1e6)

    @property
    def in_place_s(self) -> tuple[tuple[int, float], ...]:
        """The processes that ended last, by number, and how long after its end a later one served, to the microsecond.

        Omits those after which none has served yet.
        """
        ended = range(max(self.process_number - _REMEMBERED, 1), self.process_number)
        downtimes = ((number, int(self._words[_DOWNTIME + number % _REMEMBERED])) for number in ended)
        return tuple((number, took_us / 1e6) for number, took_us in downtimes if took_us)

    def record_end(self, at_s: float) -> None:
        """Record that the current process ended at this time, or has done nothing since."""
        slot = self.process_number % _REMEMBERED
        self._words[_DOWNTIME + slot], self._words[_ENDED + slot] = 0, int(at_s * 1e6)
        self._words[_DOWN] = 1

    def record_serving(self, now_s: float) -> None:
        """Record that the current process serves, which ends the downtime of those before it."""
        if not self._words[_DOWN]:
            return
        for slot in range(_REMEMBERED):
            if ended_us := int(self._words[_ENDED + slot]):
                self._words[_DOWNTIME + slot] = max(int(now_s * 1e6) - ended_us, 1)
                self._words[_ENDED + slot] = 0
        self._words[_DOWN] = 0

    def take_over(self, now_s: float) -> None:
        """Use the memory of an earlier container. Its process ended after its last tick."""
        self._words[_CONTAINER_RESTARTS] += 1
        ticked_us = int(self._words[_TICKED])
        self.record_end(ticked_us / 1e6 if ticked_us else now_s)


class Supervisor:
    """Starts processes one after another, while the next one can continue from the memory of the last.

    `start` starts one and returns its pid; in a forked process it returns 0. `recorder` passes their standard error on.
    """

    def __init__(
        self,
        control_block: ControlBlock,
        termination_file: Path,
        silence_s: float,
        start: Callable[[], int] = os.fork,
        recorder: OutputRecorder | None = None,
    ) -> None:
        self._control_block = control_block
        self._termination_file = termination_file
        self._look_s = silence_s / 2 / _LOOKS
        self._start = start if recorder is None else partial(recorder.start, start)
        self._recorder = recorder
        self._storing: deque[int] = deque(maxlen=MOST_CRASHES)  # processes that store an output, maybe ended ones
        self._crashes: deque[float] = deque(maxlen=MOST_CRASHES)
        self._stopping = False

    def run(self) -> int | None:
        """Return the pod's exit code; in each forked process return None at once."""
        code = self._run()
        if code is not None and self._recorder is not None:
            self._recorder.finish()
        return code

    def _run(self) -> int | None:
        block = self._control_block
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        if block.process_number:
            self._store_output("ended with its container")
        while True:
            block.begin_process()
            parent = os.getpid()
            child = self._start()
            if child == 0:
                exit_with_parent(parent)
                return None  # SIGTERM stays blocked until there is a handler for it
            _LOG.info("process %d of this pod starts, pid %d", block.process_number, child)
            code, ended_s = self._wait_for_end(child)
            block.record_end(ended_s)
            ends = code >= 0 and code != ExitCode.INTERNAL  # by the process's own decision: nothing recovers here
            self._store_output(_end_text(code), niceness=0 if ends else _LOWEST_PRIORITY)
            if ends:
                _wait_for(self._storing, _LAST_STORE_S)
                return code
            _LOG.error("process %d of this pod ended with %d", block.process_number, code)
            self._crashes.append(monotonic())
            why = "" if block.usable else UNUSABLE_MEMORY
            if len(self._crashes) == MOST_CRASHES and self._crashes[-1] - self._crashes[0] < WITHIN_S:
                why = f"{MOST_CRASHES} processes ended within {WITHIN_S:g} s"
            if why:
                _LOG.error("%s: the pod ends", why)
                if code > 0:
                    return ExitCode.INTERNAL  # the process has written its own termination message
                return end_pod(self._termination_file, f"{why}, the last one by {signal.Signals(-code).name}")
            with contextlib.suppress(OSError):
                self._termination_file.write_bytes(b"")  # the problem is solved

    def _store_output(self, end: str, niceness: int = _LOWEST_PRIORITY) -> None:
        """Begin to store the last output of the process that has ended, in a process of its own: the store may hang.

        Without a roster the output has no place in the store.
        """
        if self._recorder is None:
            return
        number, member = self._control_block.process_number, self._control_block.member
        text = self._recorder.take(f"process {number} of this pod {end}\n")
        if member is None:
            return
        store, parent = partial(self._recorder.store, LastOutput(*member, number, text)), os.getpid()
        try:
            child = _fork_if_possible()
        except OSError as error:
            _LOG.warning("the last output of process %d is not stored: %s", number, error)
            return
        if child == 0:
            signal.alarm(_STORE_S)
            exit_with_parent(parent)
            _run_and_exit(store, niceness)
        self._storing.append(child)

    def _next_signal(self) -> signal.struct_siginfo | None:
        """Return the next signal; None if there is none until it is time for a look."""
        if self._recorder is None:
            return signal.sigtimedwait(_SIGNALS, self._look_s)
        more, look_at_s = self._recorder.copy(), monotonic() + self._look_s
        while True:
            left_s = max(look_at_s - monotonic(), 0.0)
            caught = signal.sigtimedwait(_SIGNALS | {signal.SIGIO}, 0.0 if more else left_s)
            if caught is not None and caught.si_signo != signal.SIGIO:
                return caught
            if monotonic() >= look_at_s:  # also while the process prints without end
                return None
            more = self._recorder.copy()

    def _wait_for_end(self, child: int) -> tuple[int, float]:
        """Wait until the process ends; return its exit code, -n for signal n, and the time of its last progress."""
        if self._stopping:
            os.kill(child, signal.SIGTERM)
        ticks, still, ticked_s = 0, 0, monotonic()
        while True:
            caught = self._next_signal()
            if caught is None:
                still = still + 1 if self._control_block.ticks == ticks > 0 else 0
                ticks = self._control_block.ticks
                ticked_s = ticked_s if still else monotonic()
                if still >= _LOOKS:
                    _LOG.error("process %d of this pod hangs", self._control_block.process_number)
                    os.kill(child, signal.SIGKILL)
            elif caught.si_signo == signal.SIGTERM:
                self._stopping = True
                os.kill(child, signal.SIGTERM)
            elif (code := _reap(child)) is not None:
                return code, ticked_s if still >= _LOOKS else monotonic()


def end_pod(termination_file: Path, why: str) -> ExitCode:
    """Write why the pod ends into the termination file; return an exit code after which no container is restarted."""
    problem = Problem("GivenUp", f"{why}.", "The pod's log has more; another pod takes its place.")
    return end_with(termination_file, problem, ExitCode.INTERNAL)


def exit_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent, of this pid, ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(ExitCode.INTERNAL)


def can_fork() -> bool:
    """Return whether this process may fork: a fork cannot use the state of other threads."""
    return len(list(Path("/proc/self/task").iterdir())) == 1


def _fork_if_possible() -> int:
    """Return the pid of a child, and 0 in the child. Raises OSError."""
    if not can_fork():
        raise OSError("the supervisor has threads")
    return os.fork()


def _run_and_exit(work: Callable[[], None], niceness: int) -> NoReturn:
    """Work with this niceness, and end this process. An error is logged."""
    try:
        os.nice(niceness)
        work()
    except Exception as error:  # noqa: BLE001 -- nothing depends on it
        _LOG.warning("the last output of a process is not stored: %s", error)
    finally:
        os._exit(ExitCode.OK)


def _wait_for(children: Iterable[int], most_s: float) -> None:
    """Wait until all these children have ended, at most this long."""
    until = monotonic() + most_s
    for child in children:
        with contextlib.suppress(ChildProcessError):  # it has been reaped
            while (left_s := until - monotonic()) > 0 and not os.waitpid(child, os.WNOHANG)[0]:
                signal.sigtimedwait({signal.SIGCHLD}, left_s)


def _end_text(code: int) -> str:
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _reap(child: int) -> int | None:
    """Reap all that have ended, orphans too if this is the pod's first process; return the exit code of `child`."""
    code = None
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            if found[0] == child:
                code = os.waitstatus_to_exitcode(found[1])
    return code
