"""Passes the standard error of a pod's processes on to the container's log, and records the end of it.

The pod's supervisor does this between two looks at its process. It has one thread: the kernel sends SIGIO when a
process has written, and a container's log that accepts nothing delays the process and not the supervisor.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import select
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cpr_contract.history import OUTPUT_BYTES

#: A pipe that is ready takes this much without waiting (PIPE_BUF of Linux).
_CHUNK_BYTES = 4096
#: The most chunks between two looks at signals.
_MOST_CHUNKS = 256
#: The longest wait for a log that accepts nothing, before another look at signals.
_LOG_WAIT_MS = 20
#: The attempts to write the rest to such a log when the pod ends.
_LAST_ATTEMPTS = 50
_COUNT_BYTES = 8
_STANDARD_ERROR = 2


class Tail:
    """The last `OUTPUT_BYTES` bytes of a stream. With a file they outlive the container."""

    def __init__(self, file: Path | None = None) -> None:
        """Take over the bytes in `file`; without space on its disk the bytes lie in memory alone."""
        size_bytes = _COUNT_BYTES + OUTPUT_BYTES
        self._memory = mmap.mmap(-1, size_bytes)
        if file is not None:
            with contextlib.suppress(OSError), file.open("a+b") as opened:
                os.posix_fallocate(opened.fileno(), 0, size_bytes)  # a page without space on the disk is a SIGBUS
                self._memory = mmap.mmap(opened.fileno(), size_bytes)

    @property
    def _count(self) -> int:
        return int.from_bytes(self._memory[:_COUNT_BYTES], sys.byteorder)

    @_count.setter
    def _count(self, count: int) -> None:
        self._memory[:_COUNT_BYTES] = count.to_bytes(_COUNT_BYTES, sys.byteorder)

    def append(self, data: bytes) -> None:
        """Add bytes, at most OUTPUT_BYTES at once."""
        at = self._count % OUTPUT_BYTES
        first = data[: OUTPUT_BYTES - at]
        self._memory[_COUNT_BYTES + at : _COUNT_BYTES + at + len(first)] = first
        self._memory[_COUNT_BYTES : _COUNT_BYTES + len(data) - len(first)] = data[len(first) :]
        self._count += len(data)

    def take(self) -> bytes:
        """Return the bytes, and begin again. A first line that is cut is left out."""
        count, at = self._count, self._count % OUTPUT_BYTES
        data = self._memory[_COUNT_BYTES:]
        self._count = 0
        if count <= OUTPUT_BYTES:
            return data[:count]
        return (data[at:] + data[:at]).partition(b"\n")[2]


@dataclass(frozen=True, slots=True)
class LastOutput:
    """A process's last output. `text` is the end of its standard error, with a line about its end."""

    index: int
    incarnation: int
    process: int
    text: bytes


class OutputRecorder:
    """The standard error of processes that `start` starts, one after another.

    `store` stores the last output of one of them. It hangs if the store does, so the caller forks for it.
    """

    def __init__(self, tail: Tail, store: Callable[[LastOutput], None]) -> None:
        self._tail = tail
        self.store = store
        self._log = os.dup(_STANDARD_ERROR)
        self._source, self._target = os.pipe()
        self._unwritten = b""
        os.set_blocking(self._source, False)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGIO})  # which would end this process
        fcntl.fcntl(self._source, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(self._source, fcntl.F_SETFL, fcntl.fcntl(self._source, fcntl.F_GETFL) | fcntl.FASYNC)

    def start(self, start: Callable[[], int]) -> int:
        """Return the pid that `start` returns, 0 in a forked process; standard error of that process comes here."""
        os.dup2(self._target, _STANDARD_ERROR)
        child = start()
        if child:
            os.dup2(self._log, _STANDARD_ERROR)
        else:
            for descriptor in (self._source, self._target, self._log):
                os.close(descriptor)
        return child

    def copy(self) -> bool:
        """Copy written bytes to the log, and return whether more may be left."""
        for _ in range(_MOST_CHUNKS):
            if not self._unwritten and not self._read():
                return False
            if not self._write():
                return True
        return True

    def take(self, note: str) -> bytes:
        """Return the last bytes of a process that has ended, with a note after them, and begin anew."""
        self.copy()
        for _ in range(_MOST_CHUNKS):
            if not self._read():
                break
        self._tail.append(note.encode())
        return self._tail.take()

    def finish(self) -> None:
        """Write the rest to the log, unless it accepts nothing for a second."""
        for _ in range(_LAST_ATTEMPTS):
            if not self.copy():
                return

    def _read(self) -> bool:
        try:
            data = os.read(self._source, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        self._tail.append(data)
        self._unwritten += data
        return True

    def _write(self) -> bool:
        """Write a chunk to the log, and return whether the log accepts it."""
        ready = select.poll()
        ready.register(self._log, select.POLLOUT)
        if not ready.poll(0) and not ready.poll(_LOG_WAIT_MS):
            return False
        try:
            written = os.write(self._log, self._unwritten[:_CHUNK_BYTES])
        except OSError:  # the log has no reader any more
            written = len(self._unwritten)
        self._unwritten = self._unwritten[written:]
        return True
