"""Deadlines of the operator's requests to pods, in real time."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from cpr_operator.cluster.pod_reports import ReportFetcher, reaches
from cpr_operator.cluster.views import PodView


def pod_at(port: int) -> PodView:
    return PodView("p", "u", "o", "shard", 0, 1, "Running", 0.0, host="127.0.0.1", port_base=port - 1)


async def test_pod_that_sends_byte_by_byte_does_not_extend_its_deadline() -> None:
    hung_up = asyncio.Event()

    async def dribble(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            for _byte in range(100):
                writer.write(b".")
                await writer.drain()
                await asyncio.sleep(0.05)
        writer.close()
        hung_up.set()

    fetcher = ReportFetcher()
    async with await asyncio.start_server(dribble, "127.0.0.1", 0) as server:
        assert await fetcher.fetch(pod_at(server.sockets[0].getsockname()[1]), 0.2, 1000) is None
        await fetcher.close()
        await hung_up.wait()


async def test_pod_without_a_kernel_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        pod = pod_at(full.getsockname()[1])
        # Linux drops what comes to a full queue, as a lost node does.
        _, writer = await asyncio.open_connection("127.0.0.1", pod.port_base + 1)
        assert not await reaches(pod)
        writer.close()
