"""Stop one thread of a process while all others run, until this process is killed.

Usage: freeze_thread.py PID INDEX. INDEX 0 is the main thread; other numbers go round the other threads. Needs root.
"""

import ctypes
import os
import sys
from pathlib import Path

SEIZE, INTERRUPT, WALL = 0x4206, 0x4207, 0x40000000


def main(pid: int, index: int) -> None:
    """Seize the thread and interrupt it: it runs again when this process, its tracer, ends."""
    first, *others = sorted(int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir())
    thread = others[(index - 1) % len(others)] if index and others else first
    libc = ctypes.CDLL(None, use_errno=True)
    for request in (SEIZE, INTERRUPT):
        if libc.ptrace(request, thread, None, None):
            raise OSError(ctypes.get_errno(), f"ptrace of thread {thread}")
    os.waitpid(thread, WALL)  # it has stopped
    os.waitpid(thread, WALL)  # it was killed


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
