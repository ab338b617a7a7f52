"""Waiting with a deadline: tests ask again until the answer is there; they never sleep for a fixed time."""

import time
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")


def until(what: str, probe: Callable[[], Answer | None], within_s: float, every_s: float = 0.2) -> Answer:
    """Return the probe's first answer that is neither None nor False; raise TimeoutError, naming what was awaited."""
    deadline = time.monotonic() + within_s
    while True:
        answer = probe()
        if answer is not None and answer is not False:
            return answer
        if time.monotonic() >= deadline:
            raise TimeoutError(f"not within {within_s:g} s: {what}")
        time.sleep(every_s)
