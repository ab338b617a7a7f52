"""`python -m cpr_operator`: the operator as a process.

Reads CPR_OPERATOR_NAMESPACES (comma-separated; empty: all), CPR_OPERATOR_HTTP_PORT (8080) and KUBECONFIG, which is only
used outside a pod. SIGTERM ends it; running jobs do not notice.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable, Mapping

import kopf

from cpr_operator.api.crd import HASH_ANNOTATION, schema_hash
from cpr_operator.cluster.api_server import ApiServer, load_configuration
from cpr_operator.cluster.kubernetes import KubernetesCluster
from cpr_operator.cluster.protocol import ClusterError
from cpr_operator.controller import Controller
from cpr_operator.handlers import Configuration, ConfigurationError, make_registry, make_settings
from cpr_operator.http_server import serve
from cpr_operator.metrics import Metrics
from cpr_operator.worker import Workers

logger = logging.getLogger("cpr_operator")

RunPass = Callable[[str, str], Awaitable[float | None]]


async def operate(configuration: Configuration) -> None:
    """Run until SIGTERM or SIGINT."""
    server = ApiServer(await load_configuration())
    cluster = KubernetesCluster(server, time.time)
    metrics, ready = Metrics(), asyncio.Event()
    metrics.observe_waiting(lambda: server.waiting)
    controller = Controller(cluster, time.time, namespaces=configuration.namespaces, hold=await crd_trouble(cluster))
    workers = Workers(measured(controller.run_pass, metrics), random.Random())
    try:
        async with serve(None, configuration.http_port, ready, metrics):
            await kopf.operator(
                registry=make_registry(workers, metrics, controller.saw, controller.wrote),
                settings=make_settings(),
                namespaces=configuration.namespaces,
                clusterwide=not configuration.namespaces,
                ready_flag=ready,
            )
    finally:
        await cluster.close()


async def crd_trouble(cluster: KubernetesCluster) -> str:
    """Why no new job may start under the installed CRD; empty if it is this operator's own.

    An older schema would silently drop fields that a user wrote, a limit perhaps.
    """
    try:
        annotations = await cluster.crd_annotations()
    except ClusterError as error:
        logger.warning("cannot read the CRD: %s", error)
        return f"the CRD cannot be read ({error}); let the operator's ServiceAccount get it"
    installed = annotations.get(HASH_ANNOTATION, "none")
    if installed == schema_hash():
        return ""
    return f"the installed CRD is of another release (schema {installed}, not {schema_hash()}): upgrade the chart's CRD"


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


def main(environ: Mapping[str, str]) -> int:
    """Run the operator; returns the exit code."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    for chatty in ("httpx", "kopf.objects"):  # a line for each report asked for, and for each watch event
        logging.getLogger(chatty).setLevel(logging.WARNING)
    try:
        asyncio.run(operate(Configuration.read(environ)))
    except ConfigurationError as error:
        logger.error("%s", error)  # noqa: TRY400 -- the message says it all
        return os.EX_CONFIG
    return os.EX_OK


if __name__ == "__main__":
    sys.exit(main(os.environ))
