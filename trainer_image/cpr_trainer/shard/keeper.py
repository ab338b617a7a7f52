"""The first process of a shard's pod: it holds the memory of the tables and the socket, and forks the server.

It has one thread, and does nothing that could go wrong: so a server that is killed, crashes or hangs is followed by
another one that has all rows. Nothing outside of the pod takes part.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import socket
import sys
from collections import deque
from time import monotonic

from cpr_contract import env
from cpr_contract.exits import ExitCode
from cpr_contract.spec import JobSpec
from cpr_trainer.placement import Placement
from cpr_trainer.runtime import Environment
from cpr_trainer.shard.kept import Page
from cpr_trainer.shard.main import placement_of, serve
from cpr_trainer.shard.server import listen
from cpr_trainer.tables.arena import Arena
from cpr_trainer.tables.memory import OwnMemory, SharedMemory, SizeOf

_LOG = logging.getLogger(__name__)

#: So many crashes within so many seconds, and the pod is given up: what is in its memory may be the cause.
MOST_CRASHES, WITHIN_S = 3, 60.0
#: A server is hung if so many looks in a row find that its main loop has not turned. Looks are counted, not seconds:
#: where the whole pod was stopped for a while, it was not looked at.
_LOOKS = 5
_SIGNALS = frozenset({signal.SIGTERM, signal.SIGCHLD})
_PDEATHSIG = 1
_SIGNAL_BASE = 128


def run(environment: Environment) -> int:
    """Be a shard until the end; return the exit code. Raises TrainerError for what only a person can mend."""
    with listen((environment.address, environment.port_base + env.DATA_PORT)) as listener:
        if environment.keeper:
            return _run_kept(environment, listener)
        memory = OwnMemory()
        page = Page.new(memory, environment.job)
        page.begin_life()
        return serve(environment, page, memory, listener)


def _run_kept(environment: Environment, listener: socket.socket) -> int:
    job = environment.job
    shared = SharedMemory(_size_of(job, placement_of(job)))
    code = Keeper(environment, Page.new(shared.view(), job)).keep()
    if code is not None:
        return code
    memory = shared.view()
    return serve(environment, Page(memory, job), memory, listener)


class Keeper:
    """Forks servers, one after the other, for as long as another one may go on with what the last one left."""

    def __init__(self, environment: Environment, page: Page) -> None:
        self._environment = environment
        self._page = page
        self._look_s = environment.job.silence_s / 2 / _LOOKS
        self._crashes: deque[float] = deque(maxlen=MOST_CRASHES)
        self._stopping = False

    def keep(self) -> int | None:
        """Return the exit code of the pod; in each server None, at its beginning."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        while True:
            self._page.begin_life()
            child = os.fork()
            if child == 0:
                _die_with_parent()
                return None  # SIGTERM stays blocked until there is a handler for it
            _LOG.info("life %d begins as process %d", self._page.life, child)
            code = self._watch(child)
            if not _is_crash(code) or not self._may_begin_again(code):
                return _SIGNAL_BASE - code if code < 0 else code
            with contextlib.suppress(OSError):
                self._environment.termination_file.write_bytes(b"")  # a problem that is over

    def _watch(self, child: int) -> int:
        """Wait until the server ends; return its exit code, -n for signal n."""
        if self._stopping:
            os.kill(child, signal.SIGTERM)
        turns, still = 0, 0
        while True:
            caught = signal.sigtimedwait(_SIGNALS, self._look_s)
            if caught is None:
                still = still + 1 if self._page.turns == turns > 0 else 0
                turns = self._page.turns
                if still >= _LOOKS:
                    _LOG.error("life %d hangs: its main loop does not turn", self._page.life)
                    os.kill(child, signal.SIGKILL)
            elif caught.si_signo == signal.SIGTERM:
                self._stopping = True
                os.kill(child, signal.SIGTERM)
            elif (code := _ended(child)) is not None:
                return code

    def _may_begin_again(self, code: int) -> bool:
        _LOG.error("life %d ended with %d", self._page.life, code)
        self._crashes.append(monotonic())
        if len(self._crashes) == MOST_CRASHES and self._crashes[-1] - self._crashes[0] < WITHIN_S:
            _LOG.error("%d crashes within %g s: the pod is given up", MOST_CRASHES, WITHIN_S)
            return False
        if not self._page.fits:
            _LOG.error("what is kept does not fit: the pod is given up")
            return False
        return True


def _is_crash(code: int) -> bool:
    """Whether the server did not decide to end."""
    return code < 0 or code == ExitCode.INTERNAL


def _ended(child: int) -> int | None:
    """Reap what has ended, which may be orphans where this is the first process of a pod; the server's code."""
    code = None
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            if found[0] == child:
                code = os.waitstatus_to_exitcode(found[1])
    return code


def _size_of(job: JobSpec, placement: Placement) -> int:
    """Return how many bytes the memory of the largest shard takes: which one this is only its roster tells."""
    largest = 0
    for sizes in {placement.sizes(index) for index in range(job.shards)}:
        size = SizeOf()
        Page(size, job)
        Arena.empty(job, *sizes, memory=size)
        largest = max(largest, size.bytes)
    return largest


def _die_with_parent() -> None:
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(ExitCode.INTERNAL)
