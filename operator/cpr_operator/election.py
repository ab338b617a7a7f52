"""Leader election among operators by a Lease, with the rules of client-go.

`acquire` returns a `Term`, which the write path checks before each write. A term ends before another operator can begin
one: it counts from the time before its last renewal was sent; others count from the time of their observation, and wait
longer. The clock must include the time while the process is stopped.

A lease has expired when the same record was observed for its whole duration, by the own clock.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

from cpr_operator.cluster.api_server import ApiServer
from cpr_operator.cluster.protocol import (
    AlreadyExistsError,
    ClusterError,
    ConflictError,
    NotFoundError,
    UnavailableError,
)

logger = logging.getLogger(__name__)

#: Waits between attempts are longer by up to this fraction, so that attempts of two operators do not coincide.
JITTER = 0.2
_PATH = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"


@dataclass(frozen=True, slots=True)
class Lease:
    """The fields of a Lease. An empty `holder` means that it is free. Times are RFC 3339 with microseconds."""

    holder: str
    duration_s: int
    acquired: str
    renewed: str
    transitions: int = 0
    resource_version: str = ""


#: A lease without any holder yet.
NONE = Lease(holder="", duration_s=0, acquired="", renewed="")


@dataclass(frozen=True, slots=True)
class ObservedLease:
    """A lease, and the time at which this record was first observed, in seconds of the own clock."""

    lease: Lease
    since: float


@dataclass(frozen=True, slots=True)
class TakeoverDecision:
    """True in `take` if the lease may be taken now, with the reason; otherwise the seconds until it expires."""

    take: bool
    reason: str
    wait_s: float = 0.0


def observe(before: ObservedLease | None, lease: Lease, now: float) -> ObservedLease:
    """Return the observation after a read at `now`. Writes to the object that do not renew the lease do not count."""
    if before is None or replace(before.lease, resource_version="") != replace(lease, resource_version=""):
        return ObservedLease(lease, now)
    return ObservedLease(lease, before.since)


def decide_takeover(observed: ObservedLease | None, me: str, now: float) -> TakeoverDecision:
    """Decide whether `me` may take the lease. `observed` None: no lease was ever observed."""
    if observed is None:
        return TakeoverDecision(take=True, reason="there is no lease yet")
    holder = observed.lease.holder
    if not holder:
        return TakeoverDecision(take=True, reason="it has no holder")
    if holder == me:
        return TakeoverDecision(take=True, reason="it is held by this operator")
    ends = observed.since + observed.lease.duration_s
    if now >= ends:
        return TakeoverDecision(take=True, reason=f"{holder} has not renewed it for {observed.lease.duration_s} s")
    return TakeoverDecision(take=False, reason=f"{holder} holds it", wait_s=ends - now)


def taken(lease: Lease, me: str, duration_s: int, stamp: str) -> Lease:
    """The lease after `me` has taken it."""
    moved = lease.holder != me
    return replace(
        lease,
        holder=me,
        duration_s=duration_s,
        acquired=stamp if moved else lease.acquired,
        renewed=stamp,
        transitions=lease.transitions + (moved and bool(lease.acquired)),
    )


def from_object(found: Mapping[str, Any]) -> Lease:
    """Read a Lease object; a field that is missing is empty."""
    spec = found.get("spec") or {}
    return Lease(
        holder=spec.get("holderIdentity") or "",
        duration_s=spec.get("leaseDurationSeconds") or 0,
        acquired=spec.get("acquireTime") or "",
        renewed=spec.get("renewTime") or "",
        transitions=spec.get("leaseTransitions") or 0,
        resource_version=found["metadata"]["resourceVersion"],
    )


class Leases(Protocol):
    """Access to one Lease. All methods may raise UnavailableError and RefusedError."""

    async def read(self) -> Lease | None:
        """Read the lease; None if it does not exist."""
        ...

    async def create(self, lease: Lease) -> Lease:
        """Raises AlreadyExistsError."""
        ...

    async def replace(self, lease: Lease) -> Lease:
        """Write the lease if it still has this resource version. Raises ConflictError, NotFoundError."""
        ...


class ClusterLeases:
    """The Lease of this namespace and name on an API server."""

    def __init__(self, server: ApiServer, namespace: str, name: str) -> None:
        self._server = server
        self._namespace = namespace
        self._name = name
        self._path = _PATH.format(namespace)

    async def read(self) -> Lease | None:
        """See `Leases`."""
        with suppress(NotFoundError):
            return from_object(await self._server.get(f"{self._path}/{self._name}"))
        return None

    async def create(self, lease: Lease) -> Lease:
        """See `Leases`."""
        return from_object(await self._server.create(self._path, self._object(lease)))

    async def replace(self, lease: Lease) -> Lease:
        """See `Leases`."""
        return from_object(await self._server.replace(f"{self._path}/{self._name}", self._object(lease)))

    def _object(self, lease: Lease) -> dict[str, object]:
        """The Lease object; with a resource version the server refuses it if it was written since."""
        version = {"resourceVersion": lease.resource_version} if lease.resource_version else {}
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"namespace": self._namespace, "name": self._name, **version},
            "spec": {
                "holderIdentity": lease.holder,
                "leaseDurationSeconds": lease.duration_s,
                "acquireTime": lease.acquired,
                "renewTime": lease.renewed,
                "leaseTransitions": lease.transitions,
            },
        }


# --- the candidate


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. Another operator waits for `lease_s`, and the holder stops writing `deadline_s` after a renewal.

    It renews every `retry_s`, and `again_s` after an attempt that failed. A request gets `request_s`.
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
