"""A shell in which a test enters what a page prints, block by block, as its reader does."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Self

PROMPT = "--- all of it was done ---"


class Terminal:
    """One bash, which ends with the first command that fails. Variables stay from one block to the next."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._bash = subprocess.Popen(
            ["bash", "-eux", "-o", "pipefail"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # so that all it has started can be interrupted, and killed
            # Background processes ignore SIGINT, as do their children: Ctrl-C would end nothing.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end(signal.SIGKILL)

    def enter(self, text: str) -> None:
        """Start the commands, and wait for nothing."""
        assert self._bash.stdin is not None
        # Bash reads its own commands from there, so these must not.
        self._bash.stdin.write(f"{{\n{text}}} </dev/null\nprintf '\\n%s\\n' '{PROMPT}'\n")
        self._bash.stdin.flush()

    def run(self, text: str) -> str:
        """Run the commands. Returns what they printed; Raises AssertionError with it if one of them failed."""
        self.enter(text)
        assert self._bash.stdout is not None
        printed: list[str] = []
        for line in self._bash.stdout:
            if line == f"{PROMPT}\n":
                return "".join(printed)
            printed.append(line)
        raise AssertionError("".join(printed))

    def interrupt(self) -> str:
        """Press Ctrl-C. Returns what the commands printed until then."""
        return self._end(signal.SIGINT)

    def _end(self, by: signal.Signals) -> str:
        if self._bash.poll() is None:
            os.killpg(self._bash.pid, by)
        if self._bash.stdout is None or self._bash.stdout.closed:
            return ""
        printed, _ = self._bash.communicate()
        return printed
