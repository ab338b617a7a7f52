"""A bar that grows as samples are trained."""

from __future__ import annotations

import sys
from time import perf_counter

_WIDTH = 40


class ProgressBar:
    """A line on the standard error, for so many samples."""

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._began = perf_counter()

    def show(self, trained: int) -> None:
        """Write the line again, with the samples trained so far."""
        done = trained * _WIDTH // self._samples
        speed = trained / (perf_counter() - self._began)
        bar = "#" * done + "." * (_WIDTH - done)
        end = "\n" if trained == self._samples else ""
        sys.stderr.write(f"\r[{bar}] {trained} of {self._samples} samples, {speed:.0f} a second{end}")
        sys.stderr.flush()
