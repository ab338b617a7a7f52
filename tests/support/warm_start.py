"""Processes of jobs that need not load torch: forks of one server, which has loaded the trainer's and the shard's code.

Loading takes seconds of a processor for each trainer and half of one for each shard. The tests in tests/guard and
tests/soak/local show the imports of a separate process.
"""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from multiprocessing import forkserver
from pathlib import Path
from typing import Any
from unittest import mock

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["__main__", "cpr_trainer.trainer.supervisor", "cpr_trainer.shard.supervisor"])
#: Read when torch is loaded: threads of its forks sleep while they wait.
_LOADED_WITH = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}

#: Names a file with the last step that trainers of `run_held` may train.
HELD_AT = "CPR_TEST_HELD_AT"

#: Runs a process to its end, from its arguments, and returns the exit code.
Main = Callable[[list[str]], int]


def run(arguments: list[str]) -> int:
    """Be `python -m cpr_trainer`."""
    from cpr_trainer.process import main  # noqa: PLC0415 -- in the process alone

    return main(arguments, os.environ)


def run_with_a_thread(arguments: list[str]) -> int:
    """Be `python -m cpr_trainer`, with a thread that a package might have started."""
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    return run(arguments)


def run_without_links(arguments: list[str]) -> int:
    """Run a process with a store on a file system without hard links."""

    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted", source, None, target)

    with mock.patch.object(os, "link", refuse):
        return run(arguments)


def run_held(arguments: list[str]) -> int:
    """Be a trainer that takes no step after the one in the file HELD_AT: so a fault comes at a step on any machine.

    Meanwhile it follows rosters, and ends on request.
    """
    from cpr_trainer.trainer.control import POLL_INTERVAL_S  # noqa: PLC0415 -- in the process alone
    from cpr_trainer.trainer.step import Stepper  # noqa: PLC0415

    train, take_step, last = Stepper.train, Stepper._step, Path(os.environ[HELD_AT])
    goals: list[Callable[[], int]] = []

    def train_to(self: Stepper, feed: Any, group: Any, coordinator: Any, goal: Callable[[], int]) -> None:
        goals[:] = [goal]
        train(self, feed, group, coordinator, goal)

    def step_in_time(self: Stepper, vectors: Any, prefetch: Any, group: Any, coordinator: Any) -> None:
        while self.state.done < goals[0]() and vectors.slice.step > int(last.read_text("ascii")):
            self._control.poll_interrupts()
            if coordinator is not None and self.state.averaging is not None:  # the others come further meanwhile
                coordinator.save(self.state)
                self._status.update(step=self.state.reached, samples=self.state.samples)
            time.sleep(POLL_INTERVAL_S)
        if self.state.done < goals[0]():  # where trainers are to meet the step is not taken
            take_step(self, vectors, prefetch, group, coordinator)

    with mock.patch.object(Stepper, "train", train_to), mock.patch.object(Stepper, "_step", step_in_time):
        return run(arguments)


class Process:
    """A running process, with what it prints in a file."""

    def __init__(self, arguments: list[str], environment: Mapping[str, str], log: Path, main: Main = run) -> None:
        with mock.patch.dict(os.environ, _LOADED_WITH):
            forkserver.ensure_running()
        environment = {**os.environ, **environment}
        self._process = _CONTEXT.Process(target=_be, args=(arguments, environment, log, main), daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative for a signal."""
        return self._process.exitcode

    @property
    def child(self) -> int:
        """The pid of the process that works: the last one that it has forked. Earlier ones store output."""
        return int(Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text("ascii").split()[-1])

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.exit_code is None:
            os.kill(self.pid, number)

    def wait(self, timeout_s: float) -> int:
        """Return its exit code. Raises TimeoutError."""
        self._process.join(timeout_s)
        if self.exit_code is None:
            raise TimeoutError(f"process {self.pid} still runs after {timeout_s} s")
        return self.exit_code


def _be(arguments: list[str], environment: Mapping[str, str], log: Path, main: Main) -> None:
    os.environ.clear()
    os.environ.update(environment)
    with log.open("wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    warnings.simplefilter("error")
    code = main(arguments)
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)
