"""One of several operators: a standby until it holds the lease, then the elected one, in a thread of its own.

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
from contextlib import suppress
from typing import Any

import kopf

from cpr_operator.cluster.api_server import ApiServer, load_configuration
from cpr_operator.cluster.identity import OperatorIdentity, from_secret, in_memory
from cpr_operator.cluster.kubernetes import KubernetesCluster
from cpr_operator.cluster.protocol import RefusedError, UnavailableError
from cpr_operator.cluster.watch_cache import Kind, WatchCache
from cpr_operator.configuration import Configuration
from cpr_operator.controller.controller import Controller, OnWritten
from cpr_operator.controller.job_reader import InstalledCrd
from cpr_operator.controller.quota import QuotaRelease
from cpr_operator.election import Elector, Term
from cpr_operator.handlers import make_registry, watch_workloads
from cpr_operator.metrics import Metrics
from cpr_operator.queue import ReconcileQueue
from cpr_operator.watches import Watches

logger = logging.getLogger(__name__)

RunPass = Callable[[str, str], Awaitable[float | None]]

#: Seconds between two checks for Kueue while it is not installed.
KUEUE_S = 15.0
#: Seconds for the work of a term to end; the grace period of the pod is longer.
STOP_S = 10.0


class ElectedOperator:
    """The work of one term. `may_write` is called before each write and raises when the term is over.

    on_written: see `Controller`.
    """

    def __init__(
        self,
        configuration: Configuration,
        metrics: Metrics,
        may_write: Callable[[], None],
        on_written: OnWritten = lambda *_: None,
    ) -> None:
        self._configuration = configuration
        self._metrics = metrics
        self._may_write = may_write
        self._on_written = on_written
        self._begun = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watches: Watches | None = None
        self._queues: tuple[ReconcileQueue, ...] = ()

    def start(self) -> asyncio.Future[None]:
        """Begin in a new thread; the future ends with the work, and with its error."""
        done: concurrent.futures.Future[None] = concurrent.futures.Future()

        def run() -> None:
            try:
                done.set_result(asyncio.run(self._work()))
            except BaseException as error:  # noqa: BLE001 -- the waiter for the thread raises it
                done.set_exception(error)
            finally:
                self._begun.set()

        threading.Thread(target=run, name="elected", daemon=True).start()
        return asyncio.wrap_future(done)

    @property
    def ready(self) -> bool:
        """Return True once jobs and pods are listed."""
        return self._watches is not None and self._watches.ready

    async def tick(self) -> None:
        """Return once the event loop has run a task. Never returns while a pass blocks the loop."""
        if self._loop is not None and self._loop.is_running():
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop))

    def stop(self) -> None:
        """End the work and cancel passes, which is safe at any point. May be called from any thread."""
        self._begun.wait()
        if self._loop is not None and self._loop.is_running():
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        if self._watches is not None:
            # First the passes, because kopf takes seconds to end and their requests would slow it down.
            for queue in self._queues:
                queue.end()
            self._watches.stop()

    async def _work(self) -> None:
        server = ApiServer(await load_configuration(), self._may_write)
        watched = WatchCache(time.monotonic)
        cluster = KubernetesCluster(server, time.time, watched)
        self._metrics.observe_waiting(lambda: server.waiting)
        crd = InstalledCrd(cluster.crd_annotations, time.monotonic)
        namespaces = self._configuration.namespaces

        own, (_, lease) = self._configuration.sources, self._configuration.lease
        load = in_memory if own is None else from_secret(server, own.namespace, f"{lease}-identity")

        def on_deleted(namespace: str, name: str) -> None:
            self._metrics.forget(namespace, name)
            watched.forget(namespace, name)

        controller = Controller(
            cluster,
            time.time,
            admission_gate=crd.admission_gate,
            restart_rules=cluster.has_restart_rules,
            pod_groups=cluster.has_pod_groups,
            on_deleted=on_deleted,
            on_written=self._on_written,
            sources=self._configuration.sources,
            restriction=self._configuration.restriction,
            kueue=self._configuration.kueue,
            records=True,
            encryption=self._configuration.encryption,
            issuer=self._configuration.issuer,
            identity=OperatorIdentity(load, time.monotonic).get,
        )
        queue = ReconcileQueue(measured(controller.run_pass, self._metrics), random.Random())
        releases = ReconcileQueue(QuotaRelease(cluster, time.time).run_pass, random.Random())
        self._queues = (queue, releases)
        # A first pass before the watch has shown the job's pods would have to list them.
        queue.pause_first_passes()

        def handlers() -> kopf.OperatorRegistry:
            registry = make_registry(queue, self._metrics, watched, controller.on_pod_event, controller.on_running)
            if self._configuration.kueue:
                watch_workloads(registry, queue, releases)
            return registry

        def listed(kind: Kind, namespace: str) -> None:
            watched.listed(kind, namespace)
            if kind == "jobs":
                visit_known(self._metrics, queue)

        self._watches = Watches(namespaces, handlers, listed, queue.resume_first_passes)
        self._loop = asyncio.get_running_loop()
        self._begun.set()
        late = asyncio.create_task(self._watch_late_kueue(cluster, self._watches), name="late-kueue")
        try:
            await self._watches.run()
        finally:
            late.cancel()
            self._metrics.observe_waiting(lambda: 0)
            await cluster.close()

    async def _watch_late_kueue(self, cluster: KubernetesCluster, watches: Watches) -> None:
        """Restart the watches when Kueue is installed after they began: kopf finds new kinds only at its start."""
        missed = False
        while self._configuration.kueue:
            # Without an answer the state of Kueue is unknown; kopf has not listed the kinds yet either.
            with suppress(RefusedError, UnavailableError):
                if await cluster.serves_workloads():
                    break
                if not missed:
                    logger.warning("Kueue is not installed: jobs in its queues wait until it is")
                missed = True
            await asyncio.sleep(KUEUE_S)
        if missed:
            watches.restart()


def visit_known(metrics: Metrics, queue: ReconcileQueue) -> None:
    """Schedule a pass for each job with metrics: a pass finds one that was deleted while no watch ran."""
    for namespace, name in metrics.jobs():
        queue.schedule(namespace, name, urgent=False)


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


class StuckError(RuntimeError):
    """The work of a term does not end; only the end of the process ends it."""


class Candidate:
    """Takes part in the election, and runs the controller while elected. on_written: see `Controller`."""

    def __init__(
        self,
        elector: Elector,
        configuration: Configuration,
        metrics: Metrics,
        on_written: OnWritten = lambda *_: None,
    ) -> None:
        self._elector = elector
        self._configuration = configuration
        self._metrics = metrics
        self._on_written = on_written
        self._elected: ElectedOperator | None = None

    @property
    def role(self) -> str:
        """See `Health`. A standby has to read the lease first, the elected operator to list jobs and pods."""
        if self._elected is None:
            return "standby" if self._elector.answered else ""
        return "leader" if self._elected.ready else ""

    async def tick(self) -> None:
        """See `Health`."""
        if self._elected is not None:
            await self._elected.tick()

    async def run(self) -> None:
        """Alternate between standby and elected until cancelled. Raises StuckError, and the error that ended a term."""
        while True:
            await self._lead(await self._elector.acquire())

    async def _lead(self, term: Term) -> None:
        elected = self._elected = ElectedOperator(self._configuration, self._metrics, term.check, self._on_written)
        holding = asyncio.create_task(self._elector.hold(term))
        work = elected.start()
        self._metrics.leading.set(1)
        try:
            both: tuple[asyncio.Future[Any], ...] = (holding, work)
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if holding.done():
                logger.warning("the lease is lost: %s", holding.result())
        finally:
            elected.stop()
            await asyncio.wait({work}, timeout=STOP_S)
            holding.cancel()
            await self._elector.release(term)
            self._elected = None
            self._metrics.leading.set(0)
            for namespace, name in self._metrics.jobs():
                self._metrics.forget(namespace, name)
        if not work.done():
            raise StuckError(f"the work of the last term did not end within {STOP_S:g} s")
        work.result()
