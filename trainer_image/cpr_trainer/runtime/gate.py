"""How many callers a process serves before they have proved who they are, and how long each of them may take."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic

#: After this long a caller has to make room where others wait. An honest one needs milliseconds.
_FAIR_S = 0.5


class Gate:
    """At most `limit` callers are inside. One more waits until somebody leaves; the oldest is asked to after a while.

    A caller is anything hashable. `cut_off` ends its connection, and may be called more than once. The caller's place
    is free when the thread that serves it calls `leave`, not before: otherwise threads of callers that were cut off
    would add up. Any thread may call the methods.
    """

    def __init__(self, limit: int, cut_off: Callable[..., None]) -> None:
        self._limit = limit
        self._cut_off = cut_off
        self._inside: dict[object, float] = {}  # since when, oldest first
        self._changed = threading.Condition()

    def enter(self, caller: object) -> None:
        """Let a caller in as soon as there is room."""
        with self._changed:
            while len(self._inside) >= self._limit:
                oldest = next(iter(self._inside))
                left_s = self._inside[oldest] + _FAIR_S - monotonic()
                if left_s <= 0:
                    # It is the last to be cut off again, should its thread not end in the meantime.
                    del self._inside[oldest]
                    self._inside[oldest] = monotonic()
                    self._cut_off(oldest)
                    left_s = _FAIR_S
                self._changed.wait(left_s)
            self._inside[caller] = monotonic()

    def leave(self, caller: object) -> None:
        """Make room; does nothing for one that is not inside."""
        with self._changed:
            self._inside.pop(caller, None)
            self._changed.notify()

    def expel(self, patience_s: float) -> None:
        """Cut off all that have been inside for longer than `patience_s`."""
        with self._changed:
            late = [caller for caller, since in self._inside.items() if monotonic() - since > patience_s]
            for caller in late:
                self._cut_off(caller)
