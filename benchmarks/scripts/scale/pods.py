"""All pods' processes in one server: it watches the pods and answers on `/status` as a healthy job would.

All jobs train at the same speed without end. A replaced shard is ready at once and reports its losses.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

from cpr_contract import CONTRACT_VERSION, env
from cpr_contract.codec import from_json, to_json
from cpr_contract.manifests import generation_prefix
from cpr_contract.reports import SaveRef, ShardReport, ShardState, TrainerReport, TrainerState
from cpr_contract.roster import ShardRoster, TrainerRoster
from support.apiserver import TOKEN, ApiServer

SAMPLES_PER_S, BATCH, TOTAL = 10_000, 1000, 1_000_000_000
#: Seconds of training between two saves.
SAVE_S = 30

Key = tuple[str, str, str, int]  # namespace, job, role, index


@dataclass(slots=True)
class Job:
    """The shared state of one job's processes."""

    began: float
    lost: dict[int, list[tuple[int, int]]] = field(default_factory=dict)  # by shard
    restored: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    polled_at: float = 0.0

    def samples(self) -> int:
        """Return the samples trained so far."""
        return int((time.monotonic() - self.began) * SAMPLES_PER_S) // BATCH * BATCH

    def saved(self) -> int:
        """Return the samples of the newest save of each shard."""
        return self.samples() // (SAVE_S * SAMPLES_PER_S) * SAVE_S * SAMPLES_PER_S


@dataclass(frozen=True, slots=True)
class Pod:
    """A running pod, from the watch."""

    key: Key
    incarnation: int
    uid: str
    job_uid: str
    roster: str


class Pods:
    """The watch's view of all pods of jobs, and the server that answers for them."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._by_address: dict[str, Pod] = {}
        self.running: dict[Key, Pod] = {}
        self.jobs: dict[tuple[str, str], Job] = {}
        self.on_event: Callable[[str, Key, int], None] = lambda *_: None

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        """Watch and answer until the context ends."""
        app = web.Application()
        app.router.add_get("/status", self._answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Listen on all addresses of 127.0.0.0/8, and on no other interface.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
        listener.bind(("0.0.0.0", env.DEFAULT_PORT_BASE + env.HTTP_PORT))  # noqa: S104
        await web.SockSite(runner, listener, backlog=1024).start()
        watch = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            await runner.cleanup()

    async def _watch(self) -> None:
        context = ssl.create_default_context(cafile=str(self._server.ca_file))
        headers = {"Authorization": f"Bearer {TOKEN}"}
        query = {"watch": "true", "labelSelector": env.LABEL_JOB, "resourceVersion": "0"}
        async with aiohttp.ClientSession(headers=headers) as session:
            while True:
                timeout = aiohttp.ClientTimeout(total=None)
                url = f"{self._server.url}/api/v1/pods"
                async with session.get(url, params=query, ssl=context, timeout=timeout) as answer:
                    rest = b""
                    async for chunk in answer.content.iter_any():
                        *lines, rest = (rest + chunk).split(b"\n")
                        for line in lines:
                            event = json.loads(line)
                            self._see(event["type"], event["object"])

    def _see(self, kind: str, body: dict[str, Any]) -> None:
        meta = body["metadata"]
        labels = meta.get("labels", {})
        role, index = labels[env.LABEL_ROLE], int(labels[env.LABEL_INDEX])
        key: Key = (meta["namespace"], labels[env.LABEL_JOB], role, index)
        incarnation = int(labels[env.LABEL_INCARNATION])
        address = body.get("status", {}).get("podIP", "")
        if kind == "DELETED":
            self._by_address.pop(address, None)
            if (pod := self.running.get(key)) is not None and pod.uid == meta["uid"]:
                del self.running[key]
        elif address and body["status"].get("phase") == "Running":
            roster = meta["annotations"][env.ANNOTATION_ROSTER]
            job_uid = meta["ownerReferences"][0]["uid"]
            pod = Pod(key, incarnation, meta["uid"], job_uid, roster)
            self._by_address[address] = self.running[key] = pod
            self.jobs.setdefault(key[:2], Job(time.monotonic()))
        self.on_event(kind, key, incarnation)

    async def _answer(self, request: web.Request) -> web.Response:
        if request.transport is None:  # the client has left
            return web.Response(status=503)
        pod = self._by_address.get(request.transport.get_extra_info("sockname")[0])
        if pod is None:
            return web.Response(status=503)
        job = self.jobs[pod.key[:2]]
        job.polled_at = time.monotonic()
        report = _shard(pod, job) if pod.key[2] == env.ROLE_SHARD else _trainer(pod, job)
        return web.Response(text=to_json(report), content_type="application/json")


def _trainer(pod: Pod, job: Job) -> TrainerReport:
    roster = from_json(TrainerRoster, pod.roster)
    leads, samples = roster.leader == roster.index, job.samples()
    key = f"{generation_prefix(pod.job_uid, roster.counters.generation)}/dense/{job.saved()}"
    return TrainerReport(
        contract=CONTRACT_VERSION,
        job_uid=pod.job_uid,
        index=roster.index,
        incarnation=roster.incarnation,
        counters=roster.counters,
        state=TrainerState.TRAINING,
        step=samples // BATCH,
        samples=samples,
        samples_started=samples + 2 * BATCH,
        total_samples=TOTAL,
        waiting_for=(),
        silent=(),
        lost=(),
        problem=None,
        samples_per_s=SAMPLES_PER_S,
        shard_saves=tuple(job.saved() for _ in roster.shards) if leads else (),
        dense_save=SaveRef(key, job.saved() // BATCH, job.saved()) if leads else None,
        auc=0.75 if leads else None,
        saves=job.saved() // (SAVE_S * SAMPLES_PER_S) if leads else 0,
        commit_s=1.0 if leads else None,
    )


def _shard(pod: Pod, job: Job) -> ShardReport:
    roster = from_json(ShardRoster, pod.roster)
    restored, resumed = None, None
    if roster.incarnation > 1:
        incarnation = (roster.index, roster.incarnation)
        if incarnation not in job.restored:
            job.restored[incarnation] = (job.saved(), job.samples())
            job.lost.setdefault(roster.index, []).append(job.restored[incarnation])
        restored, resumed = job.restored[incarnation]
    return ShardReport(
        contract=CONTRACT_VERSION,
        job_uid=pod.job_uid,
        index=roster.index,
        incarnation=roster.incarnation,
        counters=roster.counters,
        state=ShardState.READY,
        applied=(job.samples() // BATCH,) * roster.trainers,
        newest_save=SaveRef("shard", job.saved() // BATCH, job.saved()),
        restored_samples=restored,
        resumed_samples=resumed,
        lost=_union(job.lost.get(roster.index, [])),
        load_s=None if restored is None else 0.5,
        silent=(),
        problem=None,
    )


def _union(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return tuple(merged)
