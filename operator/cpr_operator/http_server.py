"""The operator's own HTTP port: /healthz, /readyz, /metrics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from aiohttp import web

from cpr_operator.metrics import Metrics

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: The maximum seconds for one iteration of the event loop. The chart's probe waits for longer.
TICK_S = 4.0


class Health(Protocol):
    """The state that the probes read."""

    @property
    def role(self) -> str:
        """The role that this operator is ready for, `leader` or `standby`; empty while it is neither."""
        ...

    async def tick(self) -> None:
        """Return after one iteration of the event loop of the passes."""
        ...


@asynccontextmanager
async def serve(host: str | None, port: int, health: Health, metrics: Metrics) -> AsyncIterator[int]:
    """Serve while the context lasts; yields the port.

    `host` None means all interfaces, `port` 0 any free port. /healthz means only that the event loops
    run, on a standby as on the elected operator.
    """

    async def healthz(_: web.Request) -> web.Response:
        try:
            async with asyncio.timeout(TICK_S):
                await health.tick()
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
