"""A trace of the time that each stage of a step takes."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import TextIO

from cpr_contract.trace import TracedStep


class Trace:
    """Times the stages of one thread's steps and writes a line for each step. Does nothing without a file.

    Trainers and shards are traced in the same way, and `cprjob bench train` joins their lines. Raises OSError.
    """

    def __init__(self, path: Path | None) -> None:
        self._file: TextIO | None = None if path is None else path.open("a", buffering=1, encoding="utf-8")
        self._stages: dict[str, float] = {}
        self._last = monotonic()

    def lap(self, stage: str) -> None:
        """Add the time since the last call to `stage`."""
        if self._file is None:
            return
        now = monotonic()
        self._stages[stage] = self._stages.get(stage, 0.0) + now - self._last
        self._last = now

    def end(self, step: int) -> None:
        """Write the time of each stage of `step`."""
        if self._file is None:
            return
        self.lap("rest")
        self._file.write(TracedStep(step, self._last, self._stages).to_line())
        self._stages = {}

    def close(self) -> None:
        """Stop tracing."""
        if self._file is not None:
            self._file.close()
            self._file = None
