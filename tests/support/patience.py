"""What waits of trainers poll_interrupts to in a test: nothing, until the test has taken too long."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

_end_s = inf


def poll_interrupts() -> None:
    """Go on waiting. Raises TimeoutError when the test's patience is over, in whatever thread: so no thread stays."""
    if time.monotonic() > _end_s:
        raise TimeoutError("what was waited for did not come")


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    """Let no wait in this block go on for longer."""
    global _end_s  # noqa: PLW0603 -- members of a group wait in threads, and know of no test
    _end_s = time.monotonic() + seconds
    try:
        yield
    finally:
        _end_s = inf
