"""Runs a pod's command so that it dies with the process that started it. A script, not a module of the package.

    python -I -S launch.py PARENT_PID NICENESS COMMAND [ARGUMENT...]

The kernel sends SIGKILL when the parent ends (Linux' PR_SET_PDEATHSIG, which survives exec); elsewhere a pod
outlives a parent that was killed. Only the standard library's smallest parts are imported: this runs once per pod.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def _yield_processors(niceness: int) -> None:
    os.nice(niceness)
    try:
        # The kernel may share processors out by sessions first, and each pod has its own (sched(7)).
        autogroup = os.open("/proc/self/autogroup", os.O_WRONLY)
        os.write(autogroup, str(niceness).encode())
        os.close(autogroup)
    except OSError:  # it does not
        pass


def main(parent: int, niceness: int, command: list[str]) -> None:
    """Become `command` with a niceness; return only if the parent has ended already."""
    if niceness:
        _yield_processors(niceness)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == parent:  # else it ended before the call
        os.execv(command[0], command)  # noqa: S606 -- no shell is needed


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
