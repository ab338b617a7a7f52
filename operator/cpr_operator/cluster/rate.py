"""A limit on how often something is done: a bucket of tokens that fills at a constant rate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class TokenBucket:
    """Lets `per_second` calls through on average, and as many at once after a quiet second.

    Tokens may be owed: each caller takes its place in the queue at once and sleeps until its turn.
    """

    def __init__(self, per_second: float, clock: Callable[[], float]) -> None:
        self._rate = per_second
        self._clock = clock
        self._tokens = per_second
        self._filled = clock()

    def reserve(self) -> float:
        """Take a token and return how many seconds to wait before using it."""
        now = self._clock()
        self._tokens = min(self._rate, self._tokens + (now - self._filled) * self._rate) - 1
        self._filled = now
        return max(0.0, -self._tokens / self._rate)

    async def wait(self) -> None:
        """Return when it is the caller's turn."""
        delay_s = self.reserve()
        if delay_s > 0:
            await asyncio.sleep(delay_s)
