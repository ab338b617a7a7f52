"""An API server over HTTP that a test can break: discovery, lists in pages, watches, nothing else.

It has a thread and an event loop of its own: kopf ends all tasks of the loop that it runs in.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

JOBS, PODS = "/apis/cprjob.io/v1alpha1/cprjobs", "/api/v1/pods"
_VERBS = ["list", "watch", "get", "patch"]

Object = dict[str, Any]


def _group(name: str, version: str) -> Object:
    at = {"groupVersion": f"{name}/{version}", "version": version}
    return {"name": name, "versions": [at], "preferredVersion": at}


def _resources(group_version: str, *resources: tuple[str, str, bool]) -> Object:
    listed = [
        {"name": name, "singularName": kind.lower(), "kind": kind, "namespaced": namespaced, "verbs": _VERBS}
        for name, kind, namespaced in resources
    ]
    return {"groupVersion": group_version, "resources": listed}


@dataclass
class FakeApiServer:
    """While `fault` is set, every request is refused with that status. `requests` has lists and watches, in order."""

    port: int = 0
    has_crd: bool = True
    fault: int | None = None
    refused: int = 0
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    objects: dict[str, dict[str, Object]] = field(default_factory=lambda: {JOBS: {}, PODS: {}})
    _version: int = 1
    _watches: list[tuple[str, asyncio.Queue[Object | None]]] = field(default_factory=list)
    _runner: web.AppRunner | None = None
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it for good."""
        self.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        """Return its address."""
        return f"http://127.0.0.1:{self.port}"

    def open(self) -> None:
        """Listen, on the same port as before."""
        self._wait(self._open())

    def close(self) -> None:
        """End all watches and refuse connections."""
        self._wait(self._close())

    async def _open(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]

    async def _close(self) -> None:
        self._notify(None)
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def end_watches(self) -> None:
        """Let all watches end, as a server does that goes down."""
        self._do(lambda: self._notify(None))

    def lose_history(self) -> None:
        """End all watches with an expired resource version."""
        expired = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
        self._do(lambda: self._notify({"type": "ERROR", "object": expired}, None))

    def put_job(self, name: str, phase: str = "Running") -> None:
        """Create a job."""
        self._put(JOBS, {"metadata": {"name": name, "namespace": "n"}, "spec": {}, "status": {"phase": phase}})

    def put_pod(self, name: str, labels: dict[str, str]) -> None:
        """Create a pod."""
        self._put(PODS, {"metadata": {"name": name, "namespace": "n", "labels": labels}, "spec": {}, "status": {}})

    def vanish(self, path: str, name: str) -> None:
        """Delete an object, without an event for watches."""
        self._do(lambda: self.objects[path].pop(name, None))

    def watched(self, path: str) -> bool:
        """Return whether there is a watch now."""
        return any(each == path for each, _ in self._watches)

    def _notify(self, *events: Object | None) -> None:
        """Let all watches end with these."""
        for _, queue in self._watches:
            for event in events:
                queue.put_nowait(event)
        self._watches.clear()

    def _wait(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _do(self, act: Callable[[], object]) -> None:
        async def do() -> None:
            act()

        self._wait(do())

    def _put(self, path: str, made: Object) -> None:
        self._do(lambda: self._create(path, made))

    def _create(self, path: str, made: Object) -> None:
        self._version += 1
        made["metadata"] |= {"uid": made["metadata"]["name"], "resourceVersion": str(self._version)}
        self.objects[path][made["metadata"]["name"]] = made
        for each, events in self._watches:
            if each == path:
                events.put_nowait({"type": "ADDED", "object": made})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if self.fault is not None:
            self.refused += 1
            status = {"kind": "Status", "code": self.fault, "reason": "Fault", "message": "etcd has no leader"}
            return web.json_response(status, status=self.fault)
        if request.path in self.objects and (self.has_crd or request.path != JOBS):
            self.requests.append((request.path, dict(request.query)))
            return await (self._watch(request) if "watch" in request.query else self._list(request))
        found = self._discovery().get(request.path)
        return (
            web.json_response({"kind": "Status", "code": 404}, status=404)
            if found is None
            else web.json_response(found)
        )

    def _discovery(self) -> dict[str, Object]:
        ours = {"cprjob.io": "v1alpha1"} if self.has_crd else {}
        groups = {"apiextensions.k8s.io": "v1"} | ours
        found: dict[str, Object] = {
            "/api": {"versions": ["v1"]},
            "/apis": {"groups": [_group(*each) for each in groups.items()]},
            "/api/v1": _resources("v1", ("namespaces", "Namespace", False), ("pods", "Pod", True)),
            "/apis/apiextensions.k8s.io/v1": _resources(
                "apiextensions.k8s.io/v1", ("customresourcedefinitions", "CustomResourceDefinition", False)
            ),
        }
        if self.has_crd:
            found["/apis/cprjob.io/v1alpha1"] = _resources("cprjob.io/v1alpha1", ("cprjobs", "CPRJob", True))
        return found

    async def _list(self, request: web.Request) -> web.Response:
        selector, limit = request.query.get("labelSelector"), int(request.query.get("limit", "1000000"))
        items = [each for each in self.objects[request.path].values() if _selected(each, selector)]
        start = int(request.query.get("continue", "0"))
        remaining = str(start + limit) if start + limit < len(items) else ""
        meta = {"resourceVersion": str(self._version), "continue": remaining}
        return web.json_response({"kind": "List", "metadata": meta, "items": items[start : start + limit]})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        events: asyncio.Queue[Object | None] = asyncio.Queue()
        for each in self.objects[request.path].values():
            if int(each["metadata"]["resourceVersion"]) > int(request.query["resourceVersion"]):
                events.put_nowait({"type": "ADDED", "object": each})
        self._watches.append((request.path, events))
        response = web.StreamResponse()
        await response.prepare(request)
        while (event := await events.get()) is not None:
            if event["type"] == "ERROR" or _selected(event["object"], request.query.get("labelSelector")):
                await response.write(json.dumps(event).encode() + b"\n")
        return response


def _selected(found: Object, selector: str | None) -> bool:
    return selector is None or selector in found["metadata"].get("labels", {})
