"""A limit on how often something is done: a bucket of tokens that fills at a constant rate, the most urgent first."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable

from cpr_operator.cluster.protocol import BusyError, Priority

#: Tokens are fractions; a whole one may lack so much by rounding.
EPSILON = 1e-6


class TokenBucket:
    """Lets `per_second` calls through on average, and as many at once after a quiet second.

    Those that must wait go in the order of their priority, and within it in the order in which they came. Calls of
    `Priority.REGULAR` do not wait: they leave half of a full bucket to the others, or fail. `clock` gives seconds.
    """

    def __init__(self, per_second: float, clock: Callable[[], float]) -> None:
        self._rate = per_second
        self._clock = clock
        self._tokens = per_second
        self._filled = clock()
        self._waiting: list[tuple[Priority, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """How many callers wait for their turn."""
        return len(self._waiting)

    async def take(self, priority: Priority) -> None:
        """Return when it is the caller's turn. Raises BusyError at once if one of `Priority.REGULAR` has to wait."""
        self._fill()
        regular = priority is Priority.REGULAR
        if not self._waiting and self._tokens >= (self._rate / 2 if regular else 1.0) - EPSILON:
            self._tokens -= 1.0
            return
        if regular:
            raise BusyError(f"more than {self._rate:.0f} requests a second: those that can wait are made later")
        turn = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (priority, next(self._numbers), turn))
        self._set_timer()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it came at the same moment: the next in the queue has it
                self._tokens += 1.0
            raise

    def _serve(self) -> None:
        self._timer = None
        self._fill()
        while self._waiting and self._tokens >= 1.0 - EPSILON:
            *_, turn = heapq.heappop(self._waiting)
            if not turn.done():  # else its caller was cancelled
                turn.set_result(None)
                self._tokens -= 1.0
        self._set_timer()

    def _set_timer(self) -> None:
        if self._waiting and self._timer is None:
            missing_s = max(1.0 - self._tokens, 0.0) / self._rate
            self._timer = asyncio.get_running_loop().call_later(missing_s, self._serve)

    def _fill(self) -> None:
        now = self._clock()
        self._tokens = min(self._rate, self._tokens + (now - self._filled) * self._rate)
        self._filled = now
