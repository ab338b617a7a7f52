"""Taking a Lease, holding it, and giving it back.

`acquire` returns a `Term`, which the write path checks before each write. A term ends before anybody else may begin
one: it counts from before its last renewal was sent, others count from when they saw it, and wait for longer. The
clock must run on while the process is stopped.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from cpr_operator.cluster.protocol import (
    AlreadyExistsError,
    ClusterError,
    ConflictError,
    NotFoundError,
    UnavailableError,
)
from cpr_operator.election.lease import NONE, Lease, Leases, Seen, judge, released, see, taken

logger = logging.getLogger(__name__)

#: Waits between attempts are longer by up to this part, so that two operators do not stay in step.
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
    """This operator's term is over: it must not write."""


class Term:
    """The time in which an operator leads. May be asked from any thread."""

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
            raise NotLeadingError("this operator is no longer the leader")

    def extend(self, until: float) -> None:
        """The lease is renewed."""
        self._until = until

    def end(self) -> None:
        """From now on nothing is written."""
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
        self._said = ""
        self._seen: Seen | None = None

    @property
    def answered(self) -> bool:
        """Whether the lease was read or written at least once: this operator could take over."""
        return self._seen is not None

    async def acquire(self) -> Term:
        """Wait until the lease is ours."""
        while True:
            sent = self._clock()
            wait_s = self._timing.retry_s * (1 + JITTER * self._rng.random())
            try:
                async with asyncio.timeout(self._timing.request_s):
                    left_s = await self._try()
            except (ClusterError, TimeoutError) as error:
                self._say(f"the lease cannot be had: {type(error).__name__}: {error}")
            else:
                if left_s is None:
                    return Term(self._clock, sent + self._timing.deadline_s)
                wait_s = min(wait_s, left_s)
            await asyncio.sleep(wait_s)

    async def hold(self, term: Term) -> str:
        """Renew the lease until that fails for too long, or another holds it; returns why."""
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
                self._say(f"the lease is not renewed: {type(error).__name__}: {error}")
                due = self._clock() + self._timing.again_s
                continue
            if holder != self._me:
                term.end()
                return f"{holder or 'nobody'} holds it"
            term.extend(sent + self._timing.deadline_s)
            self._say("the lease is held")

    async def release(self, term: Term) -> None:
        """End the term and let another take the lease at once, if it is still ours."""
        term.end()
        try:
            async with asyncio.timeout(self._timing.request_s):
                lease = await self._leases.read()
                if lease is not None and lease.holder == self._me:
                    self._saw(await self._leases.replace(released(lease, self._stamp())))
        except (ClusterError, TimeoutError) as error:
            logger.info("the lease is left to run out: %s: %s", type(error).__name__, error)

    async def _try(self) -> float | None:
        """One attempt; None if the lease is ours, otherwise the seconds until the next one."""
        lease = await self._leases.read()
        # One that was deleted has still to run out: its holder may not know yet.
        seen = self._seen if lease is None else self._saw(lease)
        verdict = judge(seen, self._me, self._clock())
        if not verdict.take:
            self._say(f"stands by: {verdict.reason}")
            return verdict.wait_s
        try:
            await self._take(lease)
        except (AlreadyExistsError, ConflictError, NotFoundError):
            return self._timing.retry_s  # another one was faster: see what it wrote
        self._say(f"leads: {verdict.reason}")
        return None

    async def _renew(self) -> str:
        """Write the lease anew; returns who holds it."""
        try:
            return (await self._take(self._seen.lease if self._seen else None)).holder
        except (AlreadyExistsError, ConflictError, NotFoundError):  # written or deleted by somebody
            lease = await self._leases.read()
        if lease is not None and self._saw(lease).lease.holder != self._me:
            return lease.holder
        return (await self._take(lease)).holder

    async def _take(self, lease: Lease | None) -> Lease:
        """Write the lease as ours, over this one if there is one."""
        mine = taken(lease or NONE, self._me, self._timing.lease_s, self._stamp())
        written = await (self._leases.create(mine) if lease is None else self._leases.replace(mine))
        return self._saw(written).lease

    def _saw(self, lease: Lease) -> Seen:
        self._seen = see(self._seen, lease, self._clock())
        return self._seen

    def _say(self, words: str) -> None:
        """A line for the log when it is another one than before."""
        if words != self._said:
            self._said = words
            logger.info("%s", words)


def new_identity() -> str:
    """This process among all candidates: a container that restarts in its pod is another one."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"
