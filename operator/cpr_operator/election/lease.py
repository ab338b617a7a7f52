"""A Lease: the rules of its takeover, and its object on an API server.

A lease has expired when the same record was observed for its whole duration. Its own times are not used, because they
are of another machine's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from cpr_operator.cluster.api_server import ApiServer
from cpr_operator.cluster.protocol import NotFoundError

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

    def same(self, other: Lease) -> bool:
        """Return True if neither was renewed after the other; other writes to the object do not count."""
        return replace(self, resource_version="") == replace(other, resource_version="")


#: A lease without any holder yet.
NONE = Lease(holder="", duration_s=0, acquired="", renewed="")


@dataclass(frozen=True, slots=True)
class ObservedLease:
    """A lease, and the time at which this record was first observed, in seconds of the own clock."""

    lease: Lease
    since: float

    @property
    def ends(self) -> float:
        """The time at which it expires without a renewal."""
        return self.since + self.lease.duration_s


@dataclass(frozen=True, slots=True)
class TakeoverDecision:
    """True in `take` if the lease may be taken now, with the reason; otherwise the seconds until it expires."""

    take: bool
    reason: str
    wait_s: float = 0.0


def observe(before: ObservedLease | None, lease: Lease, now: float) -> ObservedLease:
    """Return the observation after a read at `now`."""
    return ObservedLease(lease, before.since if before is not None and before.lease.same(lease) else now)


def decide_takeover(observed: ObservedLease | None, me: str, now: float) -> TakeoverDecision:
    """Decide whether `me` may take the lease. `observed` None: no lease was ever observed."""
    if observed is None:
        return TakeoverDecision(take=True, reason="there is no lease yet")
    holder = observed.lease.holder
    if not holder:
        return TakeoverDecision(take=True, reason="it has no holder")
    if holder == me:
        return TakeoverDecision(take=True, reason="it is held by this operator")
    if now >= observed.ends:
        return TakeoverDecision(take=True, reason=f"{holder} has not renewed it for {observed.lease.duration_s} s")
    return TakeoverDecision(take=False, reason=f"{holder} holds it", wait_s=observed.ends - now)


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
        try:
            return from_object(await self._server.get(f"{self._path}/{self._name}"))
        except NotFoundError:
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
