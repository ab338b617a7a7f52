"""Acquires a Lease, holds it, and releases it.

`acquire` returns a `Term`, which the write path checks before each write. A term ends before another operator can begin
one: it counts from the time before its last renewal was sent; others count from the time of their observation, and wait
longer. The clock must include the time while the process is stopped.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace

from cpr_operator.cluster.protocol import (
    AlreadyExistsError,
    ClusterError,
    ConflictError,
    NotFoundError,
    UnavailableError,
)
from cpr_operator.election.lease import NONE, Lease, Leases, ObservedLease, decide_takeover, observe, taken

logger = logging.getLogger(__name__)

#: Waits between attempts are longer by up to this fraction, so that attempts of two operators do not coincide.
JITTER = 0.2


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. Another operator waits for `lease_s`.

    The holder stops writing `deadline_s` after a renewal. It renews every `retry_s`, and `again_s`
    after an attempt that failed. A request gets `request_s`.
    """

    lease_s: int = 8
    deadline_s: float = 6.0
    retry_s: float = 2.0
    again_s: float = 0.5
    request_s: float = 2.0


class NotLeadingError(UnavailableError):
    """This operator's term is over, so it must not write."""


class Term:
    """The time for which an operator is elected. Safe to use from any thread."""

    def __init__(self, clock: Callable[[], float], until: float) -> None:
        self._clock = clock
        self._until = until

    @property
    def left_s(self) -> float:
        """Seconds until it ends if it is not extended; 0 when it is over."""
        return max(0.0, self._until - self._clock())

    def check(self) -> None:
        """Raise NotLeadingError if the term is over."""
        if self.left_s <= 0:
            raise NotLeadingError("this operator is no longer elected")

    def extend(self, until: float) -> None:
        """Extend the term after a renewal."""
        self._until = until

    def end(self) -> None:
        """End the term: `check` raises from now on."""
        self._until = float("-inf")


class Elector:
    """One candidate for a Lease.

    `clock` gives seconds, which pass while the process is stopped; `stamp` gives the time of day.
    """

    def __init__(  # noqa: PLR0913 -- one lease, two clocks, and what differs between their users
        self,
        leases: Leases,
        me: str,
        *,
        clock: Callable[[], float],
        stamp: Callable[[], str],
        rng: random.Random,
        timing: Timing | None = None,
    ) -> None:
        self._leases = leases
        self._me = me
        self._clock = clock
        self._stamp = stamp
        self._rng = rng
        self._timing = timing or Timing()
        self._last_logged = ""
        self._observed: ObservedLease | None = None

    @property
    def answered(self) -> bool:
        """True once the lease was read or written: this operator could take over."""
        return self._observed is not None

    async def acquire(self) -> Term:
        """Wait until this operator holds the lease."""
        while True:
            sent = self._clock()
            wait_s = self._timing.retry_s * (1 + JITTER * self._rng.random())
            try:
                async with asyncio.timeout(self._timing.request_s):
                    left_s = await self._try()
            except (ClusterError, TimeoutError) as error:
                self._log_change(f"the lease cannot be acquired: {type(error).__name__}: {error}")
            else:
                if left_s is None:
                    return Term(self._clock, sent + self._timing.deadline_s)
                wait_s = min(wait_s, left_s)
            await asyncio.sleep(wait_s)

    async def hold(self, term: Term) -> str:
        """Renew the lease until that fails for too long, or another operator holds it. Returns the reason."""
        due = self._clock() + self._timing.retry_s
        while True:
            await asyncio.sleep(min(max(0.0, due - self._clock()), term.left_s))
            sent, left_s = self._clock(), term.left_s
            if left_s <= 0:
                return f"it could not be renewed for {self._timing.deadline_s:g} s"
            due = sent + self._timing.retry_s
            try:
                async with asyncio.timeout(min(self._timing.request_s, left_s)):
                    holder = await self._renew()
            except (ClusterError, TimeoutError) as error:
                self._log_change(f"the lease is not renewed: {type(error).__name__}: {error}")
                due = self._clock() + self._timing.again_s
                continue
            if holder != self._me:
                term.end()
                return f"{holder} holds it" if holder else "it has no holder"
            term.extend(sent + self._timing.deadline_s)
            self._log_change("the lease is held")

    async def release(self, term: Term) -> None:
        """End the term, and release the lease if this operator still holds it."""
        term.end()
        try:
            async with asyncio.timeout(self._timing.request_s):
                lease = await self._leases.read()
                if lease is not None and lease.holder == self._me:
                    free = replace(lease, holder="", duration_s=1, renewed=self._stamp())  # the next one need not wait
                    self._observe(await self._leases.replace(free))
        except (ClusterError, TimeoutError) as error:
            logger.info("the lease is not released, but expires: %s: %s", type(error).__name__, error)

    async def _try(self) -> float | None:
        """One attempt; None if this operator holds the lease, otherwise the seconds until the next attempt."""
        lease = await self._leases.read()
        # A deleted lease must still expire: its holder may not have noticed the deletion.
        observed = self._observed if lease is None else self._observe(lease)
        decision = decide_takeover(observed, self._me, self._clock())
        if not decision.take:
            self._log_change(f"stands by: {decision.reason}")
            return decision.wait_s
        try:
            await self._take(lease)
        except (AlreadyExistsError, ConflictError, NotFoundError):
            return self._timing.retry_s  # another operator was faster: read its lease
        self._log_change(f"elected: {decision.reason}")
        return None

    async def _renew(self) -> str:
        """Renew the lease. Returns its holder."""
        try:
            return (await self._take(self._observed.lease if self._observed else None)).holder
        except (AlreadyExistsError, ConflictError, NotFoundError):  # written or deleted by another client
            lease = await self._leases.read()
        if lease is not None and self._observe(lease).lease.holder != self._me:
            return lease.holder
        return (await self._take(lease)).holder

    async def _take(self, lease: Lease | None) -> Lease:
        """Write the lease with this operator as holder, in place of `lease` if it exists."""
        mine = taken(lease or NONE, self._me, self._timing.lease_s, self._stamp())
        written = await (self._leases.create(mine) if lease is None else self._leases.replace(mine))
        return self._observe(written).lease

    def _observe(self, lease: Lease) -> ObservedLease:
        self._observed = observe(self._observed, lease, self._clock())
        return self._observed

    def _log_change(self, message: str) -> None:
        """Log a message that differs from the last one."""
        if message != self._last_logged:
            self._last_logged = message
            logger.info("%s", message)


def new_identity() -> str:
    """The identity of this process among all candidates; a container that restarts in its pod gets another one."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"
