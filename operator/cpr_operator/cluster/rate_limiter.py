"""A limit on requests: how many begin in a second, and how many are under way, the most urgent first."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from cpr_operator.cluster.protocol import BusyError, Priority

#: Tokens are fractions; a whole one may lack so much by rounding.
EPSILON = 1e-6


class RateLimiter:
    """Lets `per_second` requests begin on average, and as many together after a quiet second.

    No more than `at_once` are under way: a server that answers slowly is asked less, and what waits
    does so here, where the most urgent goes first. Requests of one priority go in the order in
    which they came. Those of `Priority.REGULAR` do not wait: they leave half of a full ration to
    the others, or fail.

    A namespace gets a place only while it holds fewer than are free. So one whose requests hang
    holds at most half of the places, and a second one half of the rest. `clock` gives seconds. If
    `per_second` is infinite, only what is under way is limited.
    """

    def __init__(self, per_second: float, at_once: int, clock: Callable[[], float]) -> None:
        self._rate = per_second
        self._at_once = at_once
        self._clock = clock
        self._tokens = per_second
        self._filled = clock()
        self._under_way = 0
        self._regular = 0
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, list[tuple[Priority, int, asyncio.Future[None]]]] = {}
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """How many callers wait for their turn."""
        return sum(map(len, self._waiting.values()))

    @asynccontextmanager
    async def place(self, priority: Priority, namespace: str) -> AsyncIterator[None]:
        """A place for one request, from the caller's turn on to the end of the context.

        An empty `namespace` is the operator itself, which may hold all places. Raises BusyError at
        once if a caller of `Priority.REGULAR` has to wait.
        """
        await self._enter(priority, namespace)
        try:
            yield
        finally:
            self._leave(priority, namespace)

    async def _enter(self, priority: Priority, namespace: str) -> None:
        self._fill()
        regular = priority is Priority.REGULAR
        if self._first() is None and self._has_room(regular=regular) and self._may_hold(namespace):
            self._begin(priority, namespace)
            return
        if regular:
            raise BusyError("the limit of requests to the API server is reached; this request is deferred")
        turn = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting.setdefault(namespace, []), (priority, next(self._numbers), turn))
        self._serve()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it came at the same moment: the next in the queue has it
                self._tokens += 1.0
                self._leave(priority, namespace)
            raise

    def _leave(self, priority: Priority, namespace: str) -> None:
        self._under_way -= 1
        self._regular -= priority is Priority.REGULAR
        self._held[namespace] -= 1
        if not self._held[namespace]:
            del self._held[namespace]
        self._serve()

    def _begin(self, priority: Priority, namespace: str) -> None:
        self._tokens -= 1.0
        self._under_way += 1
        self._regular += priority is Priority.REGULAR
        self._held[namespace] += 1

    def _has_room(self, *, regular: bool) -> bool:
        """Whether a request may begin now; a regular one leaves half of the ration to the others."""
        if regular and not (self._tokens >= self._rate / 2 - EPSILON and self._regular < self._at_once / 2):
            return False
        return self._tokens >= 1.0 - EPSILON and self._under_way < self._at_once

    def _may_hold(self, namespace: str) -> bool:
        """Whether the namespace may hold one place more."""
        return not namespace or self._held[namespace] < self._at_once - self._under_way

    def _first(self) -> str | None:
        """The namespace whose turn is next, of those that may hold one place more; None: nobody's."""
        able = [(queue[0][:2], namespace) for namespace, queue in self._waiting.items() if self._may_hold(namespace)]
        return min(able)[1] if able else None

    def _serve(self) -> None:
        """Let those who wait begin as far as there is room; the next one when there is a token or a place for it."""
        self._fill()
        while self._has_room(regular=False) and (namespace := self._first()) is not None:
            priority, _, turn = heapq.heappop(self._waiting[namespace])
            if not self._waiting[namespace]:
                del self._waiting[namespace]
            if not turn.done():  # else its caller was cancelled
                turn.set_result(None)
                self._begin(priority, namespace)
        if self._under_way < self._at_once and self._timer is None and self._first() is not None:
            missing_s = max(1.0 - self._tokens, 0.0) / self._rate
            self._timer = asyncio.get_running_loop().call_later(missing_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._serve()

    def _fill(self) -> None:
        now = self._clock()
        if now > self._filled:  # no time times an infinite rate is no number
            self._tokens = min(self._rate, self._tokens + (now - self._filled) * self._rate)
        self._filled = now
