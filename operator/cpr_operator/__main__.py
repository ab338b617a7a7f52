"""`python -m cpr_operator`: the operator as a process.

Reads from its environment:

CPR_OPERATOR_NAMESPACES          the namespaces that it serves, separated by commas (empty: all)
CPR_OPERATOR_HTTP_PORT           its port (8080)
CPR_OPERATOR_LEASE               NAMESPACE/NAME of the Lease that elects one of several operators (default/cprjob)
CPR_OPERATOR_NAMESPACE           its own namespace, which reaches the HTTP port of jobs' pods
CPR_OPERATOR_REPORT_PEERS        others that reach it: a JSON list of NetworkPolicyPeers
CPR_OPERATOR_RESTRICT_TEMPLATES  whether pod templates are restricted (true)
CPR_OPERATOR_SERVICE_ACCOUNTS    the ServiceAccounts that restricted templates may name, separated by commas
CPR_OPERATOR_KUEUE               whether jobs may stand in queues of Kueue (false)
CPR_OPERATOR_ENCRYPTION          None or TLS: the encryption of jobs that state none (None)
CPR_OPERATOR_ISSUER              KIND.GROUP/NAME of the issuer of CAs of encrypted jobs that state none (empty: none)
CPR_OPERATOR_LOG_LEVEL           debug, info, warning or error (info); debug includes all records of kopf
CPR_OPERATOR_LOG_FORMAT          text, or json: one object a line (text)
OTEL_EXPORTER_OTLP_ENDPOINT      the collector of traces, by HTTP (empty: none); other variables of OpenTelemetry count
KUBECONFIG                       only used outside a pod

SIGTERM ends it; running jobs do not notice.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import signal
import socket
import sys
import time
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kubernetes.aio.config import ConfigException

from cpr_operator.candidate import Candidate, StuckError
from cpr_operator.cluster.api_server import ApiServer, load_configuration
from cpr_operator.configuration import COLLECTORS, Configuration, ConfigurationError, set_up_logs
from cpr_operator.election import ClusterLeases, Elector
from cpr_operator.http_server import serve
from cpr_operator.metrics import Metrics

if TYPE_CHECKING:
    from cpr_operator.traces.export import Exporter

logger = logging.getLogger("cpr_operator")

#: Thresholds of Python's garbage collector, by generation. With the defaults, listing 1,000 jobs causes 20 full
#: collections: a third of the CPU time of a start, and pauses of 0.3 s.
GC_THRESHOLDS = (20_000, 20, 20)


def open_exporter() -> Exporter:
    """Return the exporter of traces. Raises ConfigurationError without its packages."""
    try:
        from cpr_operator.traces.export import Exporter  # noqa: PLC0415 -- an optional dependency
    except ModuleNotFoundError as error:
        message = f"{' or '.join(COLLECTORS)} names a collector, and {error.name} is not installed"
        raise ConfigurationError(f"{message}: pip install 'cprjob[traces]', or unset it") from None
    return Exporter()


async def operate(configuration: Configuration) -> None:
    """Run until SIGTERM or SIGINT. Raises ConfigurationError, StuckError."""
    try:
        server = ApiServer(await load_configuration())
    except ConfigException as error:
        raise ConfigurationError(f"no access to a cluster: {error}; set KUBECONFIG, or run in a pod") from error
    # Its seconds include those while the process is stopped and, on Linux, while the machine sleeps.
    boot_clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    elector = Elector(
        ClusterLeases(server, *configuration.lease),
        f"{socket.gethostname()}_{uuid.uuid4()}",  # a container that restarts in its pod is another candidate
        clock=lambda: time.clock_gettime(boot_clock),
        stamp=lambda: datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        rng=random.Random(),
    )
    metrics = Metrics()
    exporter = open_exporter() if configuration.traces else None
    candidate = Candidate(elector, configuration, metrics, exporter.on_written if exporter else lambda *_: None)
    try:
        async with serve(None, configuration.http_port, candidate, metrics):
            task = asyncio.create_task(candidate.run())
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, task.cancel)
            await asyncio.wait({task})
            if not task.cancelled():
                task.result()
    finally:
        await server.close()
        if exporter is not None:
            exporter.close()


def main(environ: Mapping[str, str]) -> int:
    """Run the operator; returns the exit code."""
    gc.freeze()  # never collect among the modules that are loaded now
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        set_up_logs(environ)
        asyncio.run(operate(Configuration.read(environ)))
    except ConfigurationError as error:
        logger.error("%s", error)  # noqa: TRY400 -- the message has the remedy
        return os.EX_CONFIG
    except StuckError as error:
        logger.error("%s", error)  # noqa: TRY400 -- the message has the reason
        return os.EX_SOFTWARE
    return os.EX_OK


if __name__ == "__main__":
    sys.exit(main(os.environ))
