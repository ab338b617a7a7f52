"""The leader's work: it watches and runs passes, in a thread and an event loop of its own.

A long pass therefore delays neither the renewal of the lease nor an answer over HTTP. All tasks of a
term end with its loop, so the next term starts clean.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import random
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial

import kopf

from cpr_operator.cluster.api_server import ApiServer, load_configuration
from cpr_operator.cluster.kubernetes import KubernetesCluster
from cpr_operator.cluster.watched import Kind, Watched
from cpr_operator.configuration import Configuration
from cpr_operator.controller import Controller
from cpr_operator.handlers import make_registry, watch_workloads
from cpr_operator.installed_crd import InstalledCrd
from cpr_operator.metrics import Metrics
from cpr_operator.queueing import release_quota
from cpr_operator.watches import Watches
from cpr_operator.worker import Workers

logger = logging.getLogger(__name__)

RunPass = Callable[[str, str], Awaitable[float | None]]


class Leader:
    """One term's work. `may_write` is called before each write and raises when the term is over."""

    def __init__(self, configuration: Configuration, metrics: Metrics, may_write: Callable[[], None]) -> None:
        self._configuration = configuration
        self._metrics = metrics
        self._may_write = may_write
        self._begun = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watches: Watches | None = None
        self._workers: tuple[Workers, ...] = ()

    def start(self) -> asyncio.Future[None]:
        """Begin in a new thread; the future ends with the work, and with its error."""
        done: concurrent.futures.Future[None] = concurrent.futures.Future()

        def run() -> None:
            try:
                done.set_result(asyncio.run(self._work()))
            except BaseException as error:  # noqa: BLE001 -- whoever waits for the thread raises it
                done.set_exception(error)
            finally:
                self._begun.set()

        threading.Thread(target=run, name="leader", daemon=True).start()
        return asyncio.wrap_future(done)

    @property
    def ready(self) -> bool:
        """Whether jobs and pods are listed."""
        return self._watches is not None and self._watches.ready

    async def turns(self) -> None:
        """Return once the event loop has run a task. Never returns while a pass blocks the loop."""
        if self._loop is not None and self._loop.is_running():
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop))

    def stop(self) -> None:
        """End the work and cancel passes, which is safe at any point. May be called from any thread."""
        self._begun.wait()
        if self._loop is not None and self._loop.is_running():
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        """Cancel the passes first, because kopf takes seconds to end and their requests would slow it down."""
        if self._watches is not None:
            for workers in self._workers:
                workers.end()
            self._watches.stop()

    async def _work(self) -> None:
        server = ApiServer(await load_configuration(), self._may_write)
        watched = Watched(time.monotonic)
        cluster = KubernetesCluster(server, time.time, watched)
        self._metrics.observe_waiting(lambda: server.waiting)
        crd = InstalledCrd(cluster.crd_annotations, time.monotonic)
        namespaces = self._configuration.namespaces

        def gone(namespace: str, name: str) -> None:
            self._metrics.forget(namespace, name)
            watched.forget(namespace, name)

        controller = Controller(
            cluster,
            time.time,
            hold=crd.hold,
            gone=gone,
            peers=self._configuration.peers,
            restriction=self._configuration.restriction,
            kueue=self._configuration.kueue,
        )
        workers = Workers(measured(controller.run_pass, self._metrics), random.Random())
        releases = Workers(partial(release_quota, cluster, time.time), random.Random())
        self._workers = (workers, releases)
        # A first pass before the job's pods are shown would have to list them.
        workers.hold()

        def handlers() -> kopf.OperatorRegistry:
            registry = make_registry(workers, self._metrics, watched, controller.saw, controller.trains)
            if self._configuration.kueue:
                watch_workloads(registry, workers, releases)
            return registry

        def listed(kind: Kind, namespace: str) -> None:
            watched.listed(kind, namespace)
            if kind == "jobs":
                visit_known(self._metrics, workers)

        self._watches = Watches(namespaces, handlers, listed, workers.release)
        self._loop = asyncio.get_running_loop()
        self._begun.set()
        try:
            await self._watches.run()
        finally:
            self._metrics.observe_waiting(lambda: 0)
            await cluster.close()


def visit_known(metrics: Metrics, workers: Workers) -> None:
    """Schedule a pass for each job that has metrics.

    A job that was deleted while no watch ran causes no event. A pass finds that it is gone.
    """
    for namespace, name in metrics.jobs():
        workers.schedule(namespace, name, urgent=False)


def measured(run_pass: RunPass, metrics: Metrics) -> RunPass:
    """`run_pass` with its duration and result in the metrics."""

    async def run(namespace: str, name: str) -> float | None:
        start, result = time.monotonic(), "ok"
        try:
            return await run_pass(namespace, name)
        except Exception as error:
            result = type(error).__name__
            raise
        finally:
            metrics.observe_pass(result, time.monotonic() - start)

    return run
