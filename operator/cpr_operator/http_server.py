"""The operator's own HTTP port: /healthz, /readyz, /metrics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from cpr_operator.metrics import Metrics

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@asynccontextmanager
async def serve(host: str | None, port: int, ready: asyncio.Event, metrics: Metrics) -> AsyncIterator[int]:
    """Serve while the context lasts, on all interfaces if `host` is None; yields the port (`port` 0: any free one).

    Answering at all says that the event loop turns, which is all that /healthz means; /readyz follows `ready`.
    """

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        return web.Response(text="ready\n") if ready.is_set() else web.Response(status=503, text="starting\n")

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
