"""A Kubernetes API server for one pod: `kubectl exec` runs a command of this machine in the pod's environment.

It speaks the websocket protocol of the real one (v5.channel.k8s.io, and v4, which cannot close the input): the first
byte of each frame is its channel.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import WSMsgType, web

STDIN, STDOUT, STDERR, ERROR, CLOSE = 0, 1, 2, 3, 255
CHUNK = 1 << 14


@dataclass
class PodServer:
    """`job` is the one that it knows. `created` and `deleted` are what became of pods.

    `cut_after`: break the connection once a command has written so many bytes to its standard output.
    """

    job: dict[str, Any]
    protocols: tuple[str, ...] = ("v5.channel.k8s.io", "v4.channel.k8s.io")
    cut_after: int | None = None
    url: str = ""
    created: list[dict[str, Any]] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    commands: list[list[str]] = field(default_factory=list)

    def kubeconfig(self, path: Path) -> Path:
        """Write the kubeconfig that leads here."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": self.url}}],
            "users": [{"name": "test", "user": {"token": "none"}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }
        path.write_text(json.dumps(config), "utf-8")
        return path

    def routes(self) -> list[web.RouteDef]:
        """What it answers."""
        pods = "/api/v1/namespaces/default/pods"
        return [
            web.get("/apis/cprjob.io/v1alpha1/namespaces/default/cprjobs/{name}", self._get_job),
            web.post(pods, self._create),
            web.get(f"{pods}/{{name}}", self._get_pod),
            web.delete(f"{pods}/{{name}}", self._delete),
            web.get(f"{pods}/{{name}}/exec", self._exec),
        ]

    async def _get_job(self, _request: web.Request) -> web.Response:
        return web.json_response(self.job)

    async def _create(self, request: web.Request) -> web.Response:
        pod = await request.json()
        pod["metadata"]["uid"] = "pod-uid"
        self.created.append(pod)
        return web.json_response(pod, status=201)

    async def _get_pod(self, _request: web.Request) -> web.Response:
        return web.json_response(self.created[-1] | {"status": {"phase": "Running"}})

    async def _delete(self, request: web.Request) -> web.Response:
        self.deleted.append(request.match_info["name"])
        return web.json_response({})

    async def _exec(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(protocols=self.protocols)
        await socket.prepare(request)
        command = request.query.getall("command")
        self.commands.append(command)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable if word == "python3" else word for word in command),
            env=self._environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        feeding = asyncio.create_task(_feed(socket, process))
        try:
            await asyncio.gather(*(self._send(socket, *each) for each in (
                (STDOUT, process.stdout), (STDERR, process.stderr))))  # fmt: skip
            code = await process.wait()
            await socket.send_bytes(bytes([ERROR]) + json.dumps(_verdict(code)).encode())
        except _CutError:
            process.kill()
            await process.wait()
        feeding.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await feeding
        await socket.close()
        return socket

    async def _send(self, socket: web.WebSocketResponse, channel: int, source: asyncio.StreamReader | None) -> None:
        assert source is not None
        sent = 0
        while data := await source.read(CHUNK):
            await socket.send_bytes(bytes([channel]) + data)
            sent += len(data)
            if channel == STDOUT and self.cut_after is not None and sent >= self.cut_after:
                raise _CutError

    def _environment(self) -> dict[str, str]:
        (container,) = self.created[-1]["spec"]["containers"]
        own = {each["name"]: each["value"] for each in container["env"]}
        return {**os.environ, **own}


class _CutError(Exception):
    """The connection is to break here."""


async def _feed(socket: web.WebSocketResponse, process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    async for message in socket:
        if message.type is not WSMsgType.BINARY:
            continue
        channel, data = message.data[0], message.data[1:]
        if channel == STDIN:
            process.stdin.write(data)
            await process.stdin.drain()
        elif channel == CLOSE and data == bytes([STDIN]) and socket.ws_protocol == "v5.channel.k8s.io":
            process.stdin.close()


def _verdict(code: int) -> dict[str, Any]:
    if code == 0:
        return {"status": "Success"}
    cause = {"reason": "ExitCode", "message": str(code)}
    return {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": [cause]}}


@contextlib.contextmanager
def serving(server: PodServer) -> Iterator[PodServer]:
    """Serve on loopback while the context lasts."""
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    stop = asyncio.Event()

    async def serve() -> None:
        application = web.Application()
        application.add_routes(server.routes())
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        ready.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(30)
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
