"""Requests to a Kubernetes API server: plain JSON, every wait bounded, refusals as errors of the protocol."""

from __future__ import annotations

import asyncio
import copy
import json
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import orjson
from kubernetes.aio import client as kubernetes_client
from kubernetes.aio import config as kubernetes_config

from cpr_operator.cluster.protocol import (
    AlreadyExistsError,
    ClusterError,
    ConflictError,
    NotFoundError,
    Priority,
    RefusedError,
    TerminatingError,
    UnavailableError,
)
from cpr_operator.cluster.rate_limiter import RateLimiter

READS_PER_S, WRITES_PER_S = 200.0, 50.0
#: Maximum reads in flight, and maximum writes: fewer than the client has connections.
#: One namespace holds at most half of them: slow admission webhooks of one delay no other.
AT_ONCE = 16
#: The API server gives up on a request after 60 s; half of it is enough for any of ours.
TIMEOUT = aiohttp.ClientTimeout(total=30, sock_connect=5)
#: Page size of lists: a page of pods stays below a few megabytes.
PAGE = 500

#: The cause in the server's answer if the namespace is being deleted, so nothing can be created in it.
_TERMINATING = "NamespaceTerminating"

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]


async def load_configuration(kubeconfig: Path | None = None) -> kubernetes_client.Configuration:
    """Address and credentials of the API server: of `kubeconfig` if given, else of the pod's service account.

    Falls back to the user's own kubeconfig outside a pod, as kopf does for its watches.
    """
    configuration = kubernetes_client.Configuration()
    if kubeconfig is not None:
        await kubernetes_config.load_kube_config(str(kubeconfig), client_configuration=configuration)
    else:
        try:
            kubernetes_config.load_incluster_config(client_configuration=configuration)
        except kubernetes_config.ConfigException:
            await kubernetes_config.load_kube_config(client_configuration=configuration)
    configuration.proxy = configuration.proxy or environment_proxy(configuration.host)
    # With trust_env, aiohttp reads ~/.netrc in a thread at each request, a seventh of the operator's CPU time.
    configuration.client_session_kwargs = {"trust_env": False}
    return configuration


def environment_proxy(url: str) -> str | None:
    """The proxy that HTTPS_PROXY, HTTP_PROXY and NO_PROXY name for this URL; None without one."""
    parts = urlsplit(url)
    return None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)


class ApiServer:
    """One API server. Raises the Protocol's errors; a network failure is `UnavailableError`.

    `may_write` is called before each write, and raises if there must be none.
    """

    def __init__(
        self, configuration: kubernetes_client.Configuration, may_write: Callable[[], None] = lambda: None
    ) -> None:
        self._client = kubernetes_client.ApiClient(configuration)
        self._reads = RateLimiter(READS_PER_S, AT_ONCE, time.monotonic)
        self._writes = RateLimiter(WRITES_PER_S, AT_ONCE, time.monotonic)
        self._may_write = may_write
        self._priority = Priority.BEGIN

    def at(self, priority: Priority) -> Self:
        """The same server with the same limits; requests made through it have this priority."""
        other = copy.copy(self)
        other._priority = priority  # noqa: SLF001 -- of this class
        return other

    @property
    def waiting(self) -> int:
        """The number of requests that the limits defer."""
        return self._reads.waiting + self._writes.waiting

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    async def get(self, path: str, **query: str) -> dict[str, Any]:
        """Read one object, or one page of a list."""
        async with self._reads.slot(self._priority, _namespace(path)):
            return await self._request("GET", path, query)

    async def items(self, path: str, **query: str) -> list[dict[str, Any]]:
        """Read all objects of a list, page by page."""
        found: list[dict[str, Any]] = []
        query["limit"] = str(PAGE)
        while True:
            page = await self.get(path, **query)
            found += page.get("items", ())
            token = page.get("metadata", {}).get("continue", "")
            if not token:
                return found
            query["continue"] = token

    async def create(self, path: str, body: Mapping[str, Any], **query: str) -> dict[str, Any]:
        """POST an object."""
        return await self._write("POST", path, query, body)

    async def replace(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """PUT an object."""
        return await self._write("PUT", path, {}, body)

    async def merge(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """PATCH an object by JSON merge patch."""
        return await self._write("PATCH", path, {}, body, "application/merge-patch+json")

    async def apply(self, path: str, body: Mapping[str, Any], manager: str) -> dict[str, Any]:
        """Server-side apply; fields of other managers become ours."""
        query = {"fieldManager": manager, "force": "true"}
        return await self._write("PATCH", path, query, body, "application/apply-patch+yaml")

    async def delete(self, path: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """DELETE an object under DeleteOptions."""
        return await self._write("DELETE", path, {}, options)

    async def _write(
        self,
        method: Method,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any],
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        async with self._writes.slot(self._priority, _namespace(path)):
            self._may_write()
            return await self._request(method, path, query, body, content_type)

    async def _request(
        self,
        method: Method,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        headers = {"Accept": "application/json", "Content-Type": content_type, **self._client.default_headers}
        url = f"{self._client.configuration.host}{path}{'?' if query else ''}{urlencode(query)}"
        try:
            # Not `param_serialize`: it would copy the whole body, which is plain JSON already.
            await self._client.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
            response = await self._client.call_api(method, url, headers, body, _request_timeout=TIMEOUT)
            answer: bytes = await response.read()
        except (aiohttp.ClientError, TimeoutError, asyncio.IncompleteReadError, OSError) as error:
            raise UnavailableError(f"the API server does not answer: {error or type(error).__name__}") from error
        if response.status >= 400:  # noqa: PLR2004 -- the first error code of HTTP
            raise error_of(response.status, answer)
        value: dict[str, Any] = orjson.loads(answer)
        return value


def error_of(code: int, body: bytes) -> ClusterError:
    """The error of an answer, with the server's own message.

    401 and 410 are 'unavailable': tokens and list pages expire, and the next request gets new ones.
    """
    reason, message, causes = _read_status(code, body)
    match code:
        case HTTPStatus.NOT_FOUND:
            return NotFoundError(message)
        case HTTPStatus.CONFLICT if reason == "AlreadyExists":
            return AlreadyExistsError(message)
        case HTTPStatus.CONFLICT:
            return ConflictError(message)
        case HTTPStatus.UNAUTHORIZED | HTTPStatus.REQUEST_TIMEOUT | HTTPStatus.GONE | HTTPStatus.TOO_MANY_REQUESTS:
            return UnavailableError(message)
        case _ if code < HTTPStatus.INTERNAL_SERVER_ERROR:
            return TerminatingError(message) if _TERMINATING in causes else RefusedError(message)
        case _:
            return UnavailableError(message)


def _read_status(code: int, body: bytes) -> tuple[str, str, frozenset[str]]:
    """Reason, message, and the reasons of the causes."""
    try:
        status = json.loads(body)
        causes = (status.get("details") or {}).get("causes") or ()
        reasons = frozenset(str(cause.get("reason")) for cause in causes)
        return status.get("reason", ""), status.get("message") or f"HTTP {code}", reasons
    except (ValueError, AttributeError):  # a proxy's page, or an empty body
        return "", f"HTTP {code}: {body[:200].decode(errors='replace').strip()}", frozenset()


def _namespace(path: str) -> str:
    """The namespace in a path of the API; empty for cluster-scoped objects."""
    return path.partition("/namespaces/")[2].partition("/")[0]
