"""A limit of all waits of trainers in a test."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

_end_s = inf


def poll_interrupts() -> None:
    """Do nothing before the limit. Then raise TimeoutError, in any thread, so that no thread stays behind."""
    if time.monotonic() > _end_s:
        raise TimeoutError("the wait took too long")


@contextmanager
def wait_limit(seconds: float) -> Iterator[None]:
    """Limit all waits in this block."""
    global _end_s  # noqa: PLW0603 -- members of a group wait in threads, apart from the test
    _end_s = time.monotonic() + seconds
    try:
        yield
    finally:
        _end_s = inf
