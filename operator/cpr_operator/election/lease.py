"""A Lease: whether another may take it, and where it lies.

Whether it has run out is never read from its times, which another machine's clock wrote: it has run out when the same
record was seen for as long as the lease lasts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from cpr_operator.cluster.api_server import ApiServer
from cpr_operator.cluster.protocol import NotFoundError


@dataclass(frozen=True, slots=True)
class Lease:
    """The fields of a Lease. An empty `holder`: nobody's. Times are RFC 3339 with microseconds."""

    holder: str
    duration_s: int
    acquired: str
    renewed: str
    transitions: int = 0
    resource_version: str = ""

    def same(self, other: Lease) -> bool:
        """Whether nothing was renewed between the two, whatever else was written to the object."""
        return replace(self, resource_version="") == replace(other, resource_version="")


#: Before anybody has held it.
NONE = Lease(holder="", duration_s=0, acquired="", renewed="")


@dataclass(frozen=True, slots=True)
class Seen:
    """A lease, and since when this very record is seen, in seconds of the own clock."""

    lease: Lease
    since: float

    @property
    def ends(self) -> float:
        """When it has run out if it is not renewed."""
        return self.since + self.lease.duration_s


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether to take the lease now; otherwise the seconds until it runs out. `reason` says why."""

    take: bool
    reason: str
    wait_s: float = 0.0


def see(before: Seen | None, lease: Lease, now: float) -> Seen:
    """What is known after the lease was read at `now`."""
    return Seen(lease, before.since if before is not None and before.lease.same(lease) else now)


def judge(seen: Seen | None, me: str, now: float) -> Verdict:
    """Whether `me` may take the lease; None: there never was one."""
    if seen is None:
        return Verdict(take=True, reason="there is no lease yet")
    holder = seen.lease.holder
    if not holder:
        return Verdict(take=True, reason="nobody holds it")
    if holder == me:
        return Verdict(take=True, reason="it is held by this operator")
    if now >= seen.ends:
        return Verdict(take=True, reason=f"{holder} has not renewed it for {seen.lease.duration_s} s")
    return Verdict(take=False, reason=f"{holder} holds it", wait_s=seen.ends - now)


def taken(lease: Lease, me: str, duration_s: int, stamp: str) -> Lease:
    """The lease as `me` takes it."""
    moved = lease.holder != me
    return replace(
        lease,
        holder=me,
        duration_s=duration_s,
        acquired=stamp if moved else lease.acquired,
        renewed=stamp,
        transitions=lease.transitions + (moved and bool(lease.acquired)),
    )


def released(lease: Lease, stamp: str) -> Lease:
    """The lease as its holder leaves it: the next one need not wait."""
    return replace(lease, holder="", duration_s=1, renewed=stamp)


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


def to_object(lease: Lease, namespace: str, name: str) -> dict[str, Any]:
    """The Lease object; with a resource version the server refuses it if it was written since."""
    version = {"resourceVersion": lease.resource_version} if lease.resource_version else {}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"namespace": namespace, "name": name, **version},
        "spec": {
            "holderIdentity": lease.holder,
            "leaseDurationSeconds": lease.duration_s,
            "acquireTime": lease.acquired,
            "renewTime": lease.renewed,
            "leaseTransitions": lease.transitions,
        },
    }


# Where the Lease lies: `Leases` as the elector needs it, and on an API server.


_PATH = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"


class Leases(Protocol):
    """One Lease. All methods may raise UnavailableError and RefusedError."""

    async def read(self) -> Lease | None:
        """The lease as it is now; None if there is none."""
        ...

    async def create(self, lease: Lease) -> Lease:
        """Raises AlreadyExistsError."""
        ...

    async def replace(self, lease: Lease) -> Lease:
        """Write it if it is still of this resource version. Raises ConflictError, NotFoundError."""
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
        return to_object(lease, self._namespace, self._name)
