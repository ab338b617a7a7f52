"""The operator's identity for encrypted jobs, which is read or made when it is first needed.

It is in a Secret of the operator's own namespace, the only one that the operator reads.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cache
from typing import Any

from cpr_operator.cluster.api_server import ApiServer
from cpr_operator.cluster.certificates import KeyPair, client_context, new_identity
from cpr_operator.cluster.protocol import AlreadyExistsError, NotFoundError, RefusedError

#: The names in a Secret of the type kubernetes.io/tls.
CERTIFICATE, KEY = "tls.crt", "tls.key"
#: Seconds for which a refusal is valid: each pass over an encrypted job needs the identity.
REFUSED_S = 15.0

Load = Callable[[], Awaitable[KeyPair]]


async def in_memory() -> KeyPair:
    """Return an identity that ends with the process."""
    return _of_process()


class OperatorIdentity:
    """Calls `load` once, when the identity is first needed. `clock` returns seconds."""

    def __init__(self, load: Load, clock: Callable[[], float]) -> None:
        self._load = load
        self._clock = clock
        self._loading = asyncio.Lock()
        self._loaded: KeyPair | None = None
        self._refused: tuple[float, str] | None = None

    async def get(self) -> KeyPair:
        """Return the identity. Raises RefusedError, UnavailableError."""
        async with self._loading:
            if self._loaded is not None:
                return self._loaded
            if self._refused is not None and self._clock() < self._refused[0] + REFUSED_S:
                raise RefusedError(self._refused[1])
            try:
                self._loaded = await self._load()
            except RefusedError as error:
                self._refused = self._clock(), str(error)
                raise
            return self._loaded


def from_secret(server: ApiServer, namespace: str, name: str) -> Load:
    """Return what reads the identity from the Secret, and creates it if it is absent. Raises the errors of `get`."""
    path = f"/api/v1/namespaces/{namespace}/secrets"

    async def load() -> KeyPair:
        with suppress(NotFoundError):
            return _read(name, await server.get(f"{path}/{name}"))
        made = new_identity()
        # Another replica may create it at the same time: then its identity counts.
        with suppress(AlreadyExistsError):
            await server.create(path, _secret(namespace, name, made))
            return made
        try:
            return _read(name, await server.get(f"{path}/{name}"))
        except NotFoundError as error:
            raise RefusedError(f"the Secret {name} was deleted while it was read") from error

    async def with_reason() -> KeyPair:
        try:
            return await load()
        except RefusedError as error:
            remedy = "its Role must allow to create Secrets there and to get this one"
            raise RefusedError(f"the operator's identity, Secret {name} in {namespace}: {error}; {remedy}") from error

    return with_reason


@cache
def _of_process() -> KeyPair:
    return new_identity()


def _secret(namespace: str, name: str, identity: KeyPair) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": "cprjob", "app.kubernetes.io/managed-by": "cprjob-operator"}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "type": "kubernetes.io/tls",
        "stringData": {CERTIFICATE: identity.certificate, KEY: identity.key},
    }


def _read(name: str, secret: dict[str, Any]) -> KeyPair:
    """Return the identity in a Secret. Raises RefusedError if it is none."""
    try:
        certificate, key = (base64.b64decode(secret["data"][part]).decode("ascii") for part in (CERTIFICATE, KEY))
        identity = KeyPair(certificate, key)
        client_context(certificate, identity)
    except (KeyError, TypeError, ValueError, ssl.SSLError) as error:
        raise RefusedError(f"{name} holds no certificate with its key ({error!r}): delete it") from error
    return identity
