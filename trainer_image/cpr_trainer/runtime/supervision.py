"""The first process of a pod with a supervisor: it forks the process that works, and another one when that dies.

It has one thread, and does nothing that could go wrong. What the process needs to go on lies in memory that outlives
it; whoever makes a supervisor knows which. Nothing outside of the pod takes part.
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
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from cpr_contract.limits import MAX_LIVES
from cpr_contract.reports import ExitCode, Problem
from cpr_trainer.arrays import Ints
from cpr_trainer.runtime.termination import end_with

# The first words of memory that outlives a process: whose it is, and which process lives.


#: So many lives are remembered.
_KEPT = MAX_LIVES
_OWNER, _LIFE, _RESTARTS, _TURNS, _AWAY, _TURNED, _LOST = range(7)
_BACK = _LOST + _KEPT
#: The first word that is free for others.
FIRST_FREE_WORD = _BACK + _KEPT


class ControlBlock:
    """What a supervisor and the processes that it begins tell each other. words: int64, zero where the memory is new.

    owner: what tells the memory from that of others. Times are those of the machine's monotonic clock, which all
    processes read alike.
    """

    def __init__(self, words: Ints, owner: str) -> None:
        self._words = words
        self._owner = int.from_bytes(hashlib.sha256(owner.encode()).digest()[:7], "little")

    def initialise(self) -> None:
        """Say whose the memory is: it is new."""
        self._words[_OWNER] = self._owner

    @property
    def usable(self) -> bool:
        """Whether another process may go on with what is kept: the memory is the owner's, and what else a page asks."""
        return int(self._words[_OWNER]) == self._owner

    @property
    def process_number(self) -> int:
        """Counts the processes, from 1; 0 before the first."""
        return int(self._words[_LIFE])

    @property
    def container_restarts(self) -> int:
        """How many of the lives ended with their container, and another container took the memory over."""
        return int(self._words[_RESTARTS])

    def begin_process(self) -> None:
        """A process begins."""
        self._words[_TURNS] = 0
        self._words[_LIFE] += 1

    @property
    def ticks(self) -> int:
        """Rises while the present process is alive; 0 while it starts."""
        return int(self._words[_TURNS])

    @property
    def in_place_s(self) -> tuple[tuple[int, float], ...]:
        """The lives that ended lately, and how long after that a later one worked: what nobody knows yet is not there.

        To the microsecond.
        """
        ended = range(max(self.process_number - _KEPT, 1), self.process_number)
        back = ((life, int(self._words[_BACK + life % _KEPT])) for life in ended)
        return tuple((life, took_us / 1e6) for life, took_us in back if took_us)

    def record_end(self, at_s: float) -> None:
        """The present life has ended, or has done nothing since then."""
        slot = self.process_number % _KEPT
        self._words[_BACK + slot], self._words[_LOST + slot] = 0, int(at_s * 1e6)
        self._words[_AWAY] = 1

    def record_serving(self, now_s: float) -> None:
        """The present life works: what the lives that ended before have cost is known."""
        if not self._words[_AWAY]:
            return
        for slot in range(_KEPT):
            if lost_us := int(self._words[_LOST + slot]):
                self._words[_BACK + slot] = max(int(now_s * 1e6) - lost_us, 1)
                self._words[_LOST + slot] = 0
        self._words[_AWAY] = 0

    def tick(self) -> None:
        """Show that the present process is alive."""
        self._words[_TURNS] += 1
        self._words[_TURNED] = int(monotonic() * 1e6)

    def take_over(self, now_s: float) -> None:
        """Another supervisor takes the memory over: the life in it has ended with the last one, after its last turn."""
        self._words[_RESTARTS] += 1
        turned_us = int(self._words[_TURNED])
        self.record_end(turned_us / 1e6 if turned_us else now_s)


_LOG = logging.getLogger(__name__)

#: So many crashes within so many seconds, and the pod is given up: what is in its memory may be the cause.
MOST_CRASHES, WITHIN_S = 3, 60.0
#: A process hangs if so many looks in a row find that it has not turned. Looks are counted, not seconds: where the
#: whole pod was stopped for a while, it was not looked at.
_LOOKS = 5
_SIGNALS = frozenset({signal.SIGTERM, signal.SIGCHLD})
_PDEATHSIG = 1
#: Why a pod is given up whose memory cannot be used.
UNUSABLE_MEMORY = "what is kept in memory does not fit this job, or is damaged"


class Supervisor:
    """Begins processes, one after the other, for as long as another one may go on with what the last one left.

    `begin` starts one and returns its pid; in a process that it forks, 0.
    """

    def __init__(
        self, page: ControlBlock, termination_file: Path, silence_s: float, begin: Callable[[], int] = os.fork
    ) -> None:
        self._page = page
        self._termination_file = termination_file
        self._look_s = silence_s / 2 / _LOOKS
        self._begin = begin
        self._crashes: deque[float] = deque(maxlen=MOST_CRASHES)
        self._stopping = False

    def run(self) -> int | None:
        """Return the exit code of the pod; in each process that was forked None, at its beginning."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        while True:
            self._page.begin_process()
            parent = os.getpid()
            child = self._begin()
            if child == 0:
                exit_with_parent(parent)
                return None  # SIGTERM stays blocked until there is a handler for it
            _LOG.info("life %d begins as process %d", self._page.process_number, child)
            code, lost_at_s = self._watch(child)
            self._page.record_end(lost_at_s)
            if not _is_crash(code):
                return code
            if why_not := self._gives_up(code):
                return self._give_up(code, why_not)
            with contextlib.suppress(OSError):
                self._termination_file.write_bytes(b"")  # a problem that is over

    def _watch(self, child: int) -> tuple[int, float]:
        """Wait until the process ends; return its exit code, -n for signal n, and since when it has done nothing."""
        if self._stopping:
            os.kill(child, signal.SIGTERM)
        turns, still, turned_s = 0, 0, monotonic()
        while True:
            caught = signal.sigtimedwait(_SIGNALS, self._look_s)
            if caught is None:
                still = still + 1 if self._page.ticks == turns > 0 else 0
                turns = self._page.ticks
                turned_s = turned_s if still else monotonic()
                if still >= _LOOKS:
                    _LOG.error("life %d hangs: its main loop does not turn", self._page.process_number)
                    os.kill(child, signal.SIGKILL)
            elif caught.si_signo == signal.SIGTERM:
                self._stopping = True
                os.kill(child, signal.SIGTERM)
            elif (code := _ended(child)) is not None:
                return code, turned_s if still >= _LOOKS else monotonic()

    def _gives_up(self, code: int) -> str:
        """Why no other process may begin after this one; empty if one may."""
        _LOG.error("life %d ended with %d", self._page.process_number, code)
        self._crashes.append(monotonic())
        if len(self._crashes) == MOST_CRASHES and self._crashes[-1] - self._crashes[0] < WITHIN_S:
            return f"{MOST_CRASHES} processes ended within {WITHIN_S:g} s"
        return "" if self._page.usable else UNUSABLE_MEMORY

    def _give_up(self, code: int, why: str) -> ExitCode:
        """End the pod, by a code after which no container is begun again. What the process itself has told stays."""
        _LOG.error("%s: the pod is given up", why)
        if code > 0:
            return ExitCode.INTERNAL
        return give_up(self._termination_file, f"{why}, the last one by {signal.Signals(-code).name}")


def give_up(termination_file: Path, why: str) -> ExitCode:
    """Tell why the pod is given up; return its exit code."""
    problem = Problem("GivenUp", f"{why}.", "The pod's log has more; another pod takes its place.")
    return end_with(termination_file, problem, ExitCode.INTERNAL)


def exit_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent, of this pid, ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(ExitCode.INTERNAL)


def _is_crash(code: int) -> bool:
    """Whether the process did not decide to end."""
    return code < 0 or code == ExitCode.INTERNAL


def _ended(child: int) -> int | None:
    """Reap what has ended, which may be orphans where this is the first process of a pod; the code of the process."""
    code = None
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            if found[0] == child:
                code = os.waitstatus_to_exitcode(found[1])
    return code
