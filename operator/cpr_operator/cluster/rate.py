"""A limit on requests: how many begin in a second, and how many are under way, the most urgent first."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from cpr_operator.cluster.protocol import BusyError, Priority

#: Tokens are fractions; a whole one may lack so much by rounding.
EPSILON = 1e-6


class Ration:
    """Lets `per_second` requests begin on average, and as many together after a quiet second.

    No more than `at_once` are under way: a server that answers slowly is asked less, and what waits does so here, where
    the most urgent goes first. Requests of one priority go in the order in which they came. Those of `Priority.REGULAR`
    do not wait: they leave half of a full ration to the others, or fail. `clock` gives seconds.
    """

    def __init__(self, per_second: float, at_once: int, clock: Callable[[], float]) -> None:
        self._rate = per_second
        self._at_once = at_once
        self._clock = clock
        self._tokens = per_second
        self._filled = clock()
        self._under_way = 0
        self._waiting: list[tuple[Priority, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """How many callers wait for their turn."""
        return len(self._waiting)

    @asynccontextmanager
    async def place(self, priority: Priority) -> AsyncIterator[None]:
        """A place for one request, from the caller's turn on to the end of the context.

        Raises BusyError at once if a caller of `Priority.REGULAR` has to wait.
        """
        await self._enter(priority)
        try:
            yield
        finally:
            self._leave()

    async def _enter(self, priority: Priority) -> None:
        self._fill()
        regular = priority is Priority.REGULAR
        if not self._waiting and self._has_room(regular=regular):
            self._begin()
            return
        if regular:
            raise BusyError("the API server is asked for as much as it should be: what can wait is asked for later")
        turn = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (priority, next(self._numbers), turn))
        self._serve()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it came at the same moment: the next in the queue has it
                self._tokens += 1.0
                self._leave()
            raise

    def _leave(self) -> None:
        self._under_way -= 1
        self._serve()

    def _begin(self) -> None:
        self._tokens -= 1.0
        self._under_way += 1

    def _has_room(self, *, regular: bool) -> bool:
        """Whether a request may begin now; a regular one leaves half of the ration to the others."""
        if regular:
            return self._tokens >= self._rate / 2 - EPSILON and self._under_way < self._at_once / 2
        return self._tokens >= 1.0 - EPSILON and self._under_way < self._at_once

    def _serve(self) -> None:
        """Let those who wait begin as far as there is room; the next one when there is a token or a place for it."""
        self._fill()
        while self._waiting and self._has_room(regular=False):
            *_, turn = heapq.heappop(self._waiting)
            if not turn.done():  # else its caller was cancelled
                turn.set_result(None)
                self._begin()
        if self._waiting and self._under_way < self._at_once and self._timer is None:
            missing_s = max(1.0 - self._tokens, 0.0) / self._rate
            self._timer = asyncio.get_running_loop().call_later(missing_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._serve()

    def _fill(self) -> None:
        now = self._clock()
        self._tokens = min(self._rate, self._tokens + (now - self._filled) * self._rate)
        self._filled = now
