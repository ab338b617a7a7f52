"""SIGTERM: the request to save what is left and to end."""

from __future__ import annotations

import signal
import threading
from types import FrameType


def stop_on_sigterm() -> threading.Event:
    """Return an event that SIGTERM sets, from now on. Call it on the main thread."""
    stop = threading.Event()

    def handle(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, handle)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # who forked this process may have blocked it
    return stop
