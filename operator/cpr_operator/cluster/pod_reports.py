"""Asking pods for their reports over HTTP. No answer is an answer: it is never evidence of anything."""

from __future__ import annotations

import asyncio

import httpx

from cpr_contract import env
from cpr_operator.cluster.views import PodView

MAX_IN_FLIGHT = 64
#: A report is some kilobytes; more than this comes from no pod of ours.
MAX_REPORT_BYTES = 1 << 20


class ReportFetcher:
    """One HTTP client for all pods, with a bound on requests in flight. Proxies of the environment are not used."""

    def __init__(self) -> None:
        kept = httpx.Limits(max_keepalive_connections=MAX_IN_FLIGHT)
        self._client = httpx.AsyncClient(limits=kept, trust_env=False)
        self._in_flight = asyncio.Semaphore(MAX_IN_FLIGHT)

    async def fetch(self, pod: PodView, deadline_s: float) -> bytes | None:
        """The body of the pod's `/status`; None without an address or without a whole answer in time."""
        if not pod.host:
            return None
        host = f"[{pod.host}]" if ":" in pod.host else pod.host
        url = f"http://{host}:{pod.port_base + env.HTTP_PORT}/status"
        async with self._in_flight:  # the deadline is the pod's: it does not run while others are asked
            try:
                async with asyncio.timeout(deadline_s):
                    return await self._get(url)
            except (TimeoutError, httpx.HTTPError):
                return None

    async def _get(self, url: str) -> bytes | None:
        async with self._client.stream("GET", url, timeout=None) as response:
            if response.status_code != httpx.codes.OK:
                return None
            body = bytearray()
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > MAX_REPORT_BYTES:
                    return None
            return bytes(body)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()
