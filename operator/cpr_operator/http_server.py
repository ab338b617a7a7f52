"""The operator's own HTTP port: /healthz, /readyz, /metrics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from aiohttp import web

from cpr_operator.metrics import Metrics

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: The probe of the chart waits for longer.
TURN_S = 4.0


class Health(Protocol):
    """What the probes ask."""

    @property
    def role(self) -> str:
        """What this operator is ready to be, `leader` or `standby`; empty while it is neither."""
        ...

    async def turns(self) -> None:
        """Return when the event loop of the passes has turned once."""
        ...


@asynccontextmanager
async def serve(host: str | None, port: int, health: Health, metrics: Metrics) -> AsyncIterator[int]:
    """Serve while the context lasts; yields the port.

    `host` None means all interfaces, `port` 0 any free port. /healthz means that the event loops
    turn, on a standby as on the leader, and nothing else.
    """

    async def healthz(_: web.Request) -> web.Response:
        try:
            async with asyncio.timeout(TURN_S):
                await health.turns()
        except TimeoutError:
            return web.Response(status=503, text="no pass makes progress\n")
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        role = health.role
        return web.Response(text=f"{role}\n") if role else web.Response(status=503, text="starting\n")

    async def read_metrics(_: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), headers={"Content-Type": METRICS_TYPE})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", read_metrics)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
