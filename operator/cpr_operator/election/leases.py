"""Where the Lease lies: `Leases` as the elector needs it, and on an API server."""

from __future__ import annotations

from typing import Protocol

from cpr_operator.cluster.api_server import ApiServer
from cpr_operator.cluster.protocol import NotFoundError
from cpr_operator.election.lease import Lease, from_object, to_object

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
