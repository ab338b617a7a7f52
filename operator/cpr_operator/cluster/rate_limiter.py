"""Limits on requests: the number that begin in a second, the number in flight, and the pause after failures."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from cpr_operator.cluster.protocol import BusyError, Priority

#: Tokens are fractions; a whole one may miss this much by rounding.
EPSILON = 1e-6
#: Doublings after which a pause no longer grows: far above every maximum.
_MAX_DOUBLINGS = 16


def backoff_s(doublings: int, first_s: float, last_s: float) -> float:
    """Seconds to pause: `first_s`, doubled this many times, but at most `last_s`."""
    return min(last_s, first_s * 2.0 ** min(doublings, _MAX_DOUBLINGS))


class RateLimiter:
    """Lets `per_second` requests begin on average, and a burst of the same number after an idle second.

    At most `at_once` requests are in flight: a slow server gets fewer requests, and the others wait here, where
    the highest priority goes first. Requests of one priority go in the order of their arrival. Those of
    `Priority.REGULAR` do not wait: they leave half of the full limit to the others, or fail.

    A namespace gets a slot only while it holds fewer than are free. A namespace with hanging requests therefore
    holds at most half of the slots, and a second one half of the others. `clock` gives seconds. If
    `per_second` is infinite, only the number in flight is limited.
    """

    def __init__(self, per_second: float, at_once: int, clock: Callable[[], float]) -> None:
        self._rate = per_second
        self._at_once = at_once
        self._clock = clock
        self._tokens = per_second
        self._filled = clock()
        self._in_flight = 0
        self._regular = 0
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, list[tuple[Priority, int, asyncio.Future[None]]]] = {}
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """The number of waiting callers."""
        return sum(map(len, self._waiting.values()))

    @asynccontextmanager
    async def slot(self, priority: Priority, namespace: str) -> AsyncIterator[None]:
        """Wait for a slot, and hold it until the end of the context.

        An empty `namespace` is the operator itself, which may hold all slots. Raises BusyError at
        once if a caller of `Priority.REGULAR` would have to wait.
        """
        await self._enter(priority, namespace)
        try:
            yield
        finally:
            self._leave(priority, namespace)

    async def _enter(self, priority: Priority, namespace: str) -> None:
        self._fill()
        regular = priority is Priority.REGULAR
        if self._first() is None and self._has_capacity(regular=regular) and self._may_hold(namespace):
            self._begin(priority, namespace)
            return
        if regular:
            raise BusyError("the limit of requests to the API server is reached; this request is deferred")
        granted = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting.setdefault(namespace, []), (priority, next(self._numbers), granted))
        self._serve()
        try:
            await granted
        except asyncio.CancelledError:
            if not granted.cancelled():  # granted at the same moment: the slot goes to the next waiting caller
                self._tokens += 1.0
                self._leave(priority, namespace)
            raise

    def _begin(self, priority: Priority, namespace: str) -> None:
        self._tokens -= 1.0
        self._in_flight += 1
        self._regular += priority is Priority.REGULAR
        self._held[namespace] += 1

    def _leave(self, priority: Priority, namespace: str) -> None:
        self._in_flight -= 1
        self._regular -= priority is Priority.REGULAR
        self._held[namespace] -= 1
        assert self._in_flight >= 0, "more requests ended than began"
        assert self._held[namespace] >= 0, f"namespace {namespace!r} gave back more slots than it held"
        if not self._held[namespace]:
            del self._held[namespace]
        self._serve()

    def _has_capacity(self, *, regular: bool) -> bool:
        """Return True if a request may begin now; a regular one leaves half of the limit to the others."""
        if regular and not (self._tokens >= self._rate / 2 - EPSILON and self._regular < self._at_once / 2):
            return False
        return self._tokens >= 1.0 - EPSILON and self._in_flight < self._at_once

    def _may_hold(self, namespace: str) -> bool:
        """Return True if the namespace may hold another slot."""
        return not namespace or self._held[namespace] < self._at_once - self._in_flight

    def _first(self) -> str | None:
        """The namespace of the next request, of those that may hold another slot; None without any."""
        able = [(queue[0][:2], namespace) for namespace, queue in self._waiting.items() if self._may_hold(namespace)]
        return min(able)[1] if able else None

    def _serve(self) -> None:
        """Begin waiting requests while there is capacity, and set a timer for the next token."""
        self._fill()
        while self._has_capacity(regular=False) and (namespace := self._first()) is not None:
            priority, _, granted = heapq.heappop(self._waiting[namespace])
            if not self._waiting[namespace]:
                del self._waiting[namespace]
            if not granted.done():  # else its caller was cancelled
                granted.set_result(None)
                self._begin(priority, namespace)
        if self._in_flight < self._at_once and self._timer is None and self._first() is not None:
            missing_s = max(1.0 - self._tokens, 0.0) / self._rate
            self._timer = asyncio.get_running_loop().call_later(missing_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._serve()

    def _fill(self) -> None:
        now = self._clock()
        if now > self._filled:  # zero seconds times an infinite rate is not a number
            self._tokens = min(self._rate, self._tokens + (now - self._filled) * self._rate)
        self._filled = now
