"""Pods whose store never answers about the job's history, pods that wait for it, and pods that print a lot."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpr_contract import env
from cpr_trainer.process import main
from cpr_trainer.runtime import supervision
from cpr_trainer.store.folder import FolderStore
from support.warm_start import run_held

put = FolderStore.put


@dataclass(frozen=True)
class WithHangingHistory:
    """Runs a pod. A process that stores an output leaves `hanging-PID` in the scratch folder, and never ends.

    With `expires`, the limit on the time of storing passes as soon as the process hangs; without, it never passes.
    """

    expires: bool = False

    def __call__(self, arguments: list[str]) -> int:
        """Patch this process, and be the pod."""
        supervision._STORE_S = 200  # a process of the lowest priority may need long before it hangs
        FolderStore.put = self._hang
        return main(arguments, os.environ)

    @property
    def _hang(self) -> Any:
        def hanging_put(store: FolderStore, key: str, *arguments: Any, **options: Any) -> int:
            if "/history/" not in key:
                return put(store, key, *arguments, **options)
            Path(os.environ[env.SCRATCH_DIR], f"hanging-{os.getpid()}").touch()
            if signal.alarm(0) and self.expires:
                signal.raise_signal(signal.SIGALRM)
            threading.Event().wait()
            raise AssertionError("it waits for ever")

        return hanging_put


def hanging(folder: Path) -> tuple[int, ...]:
    """Return the processes in a pod's scratch folder that began to store an output and have not ended."""
    pids = (int(path.name.rpartition("-")[2]) for path in folder.glob("hanging-*"))
    return tuple(pid for pid in pids if Path(f"/proc/{pid}").exists())


def run_held_until_stored(arguments: list[str]) -> int:
    """Be a trainer of `run_held` that ends once its last output is stored, however slow the machine is."""
    supervision._LAST_STORE_S = 200.0
    return run_held(arguments)


@dataclass(frozen=True)
class Printing:
    """Runs a pod whose first process prints this many numbered lines at once, beyond the capacity of a pipe."""

    lines: int

    def __call__(self, arguments: list[str]) -> int:
        """Print, and be the pod."""
        serve = supervision.exit_with_parent

        def print_and_serve(parent: int) -> None:
            serve(parent)
            for number in range(self.lines):
                os.write(2, b"line %07d\n" % number)

        supervision.exit_with_parent = print_and_serve
        return main(arguments, os.environ)
