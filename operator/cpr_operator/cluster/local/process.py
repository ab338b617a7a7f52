"""A pod's process: started in a group of its own, signalled as a group, never outliving this one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

LAUNCHER = Path(__file__).with_name("launch.py")
SHELL_SIGNAL_BASE = 128


class PodProcess:
    """A running process and all that it starts."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, command: tuple[str, ...], environment: Mapping[str, str], log: Path) -> PodProcess:
        """Start `command` (an absolute path and its arguments) with exactly this environment. Raises OSError."""
        launcher = (sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid()))
        with _append(log) as output:
            process = await asyncio.create_subprocess_exec(
                *launcher,
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,  # Ctrl-C in the terminal is this process' business alone
            )
        return cls(process)

    @property
    def code(self) -> int | None:
        """The exit code as Python has it; None while it runs."""
        return self._process.returncode

    async def wait(self) -> int:
        """The exit code once it has ended; 128+n for signal n, as Kubernetes shows it. Its group is killed then."""
        code = await self._process.wait()
        self.signal(signal.SIGKILL)
        return SHELL_SIGNAL_BASE - code if code < 0 else code

    def signal_child(self, number: signal.Signals) -> None:
        """Send a signal to the processes that the first one of the group has started; not to itself."""
        pid = self._process.pid
        with contextlib.suppress(OSError):
            for child in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split():
                os.kill(int(child), number)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the whole group; a group that has ended is left alone."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def _append(path: Path) -> BinaryIO:
    return path.open("ab")
