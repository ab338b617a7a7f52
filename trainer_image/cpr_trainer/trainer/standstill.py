"""How long the whole process stood still: stopped by a signal, or with its machine asleep."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic

_TICK_S = 0.05
#: A thread that wakes up later than this did not run: a loaded machine is no excuse.
_LATE_S = 1.0


class PauseDetector:
    """A thread that wakes up often, and finds itself late after a standstill."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.on_tick: Callable[[], None] = lambda: None  # called on the thread, many times a second
        self._clock = clock
        self._ticked = clock()
        self._late_s = 0.0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="standstill", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """Stop looking."""
        self._ended.set()

    def tick(self) -> None:
        """Look once; any thread may."""
        with self._lock:
            now = self._clock()
            late_s = now - self._ticked - _TICK_S
            self._ticked = now
            if late_s > _LATE_S:
                self._late_s += late_s

    def take_paused_s(self) -> float:
        """Return the seconds that the process stood still since the last call."""
        self.tick()
        with self._lock:
            late_s, self._late_s = self._late_s, 0.0
        return late_s

    def _run(self) -> None:
        while not self._ended.wait(_TICK_S):
            self.tick()
            self.on_tick()
