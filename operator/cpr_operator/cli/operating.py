"""The operator's own controller over processes of this machine, for as long as a command lasts."""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from cpr_operator.cli.needs import check_trainer_image
from cpr_operator.cluster.local import LocalCluster
from cpr_operator.cluster.views import JobView
from cpr_operator.controller import Controller
from cpr_operator.reconcile import Timing
from cpr_operator.worker import Workers

#: Seconds to wait after a pod's change, so that several changes share a pass.
DEBOUNCE_S = 0.05
#: Passes are frequent, because asking and writing are cheap here and runs are short.
TIMING = Timing(running_s=1.0, floor_s=0.2, changing_s=0.2, progress_s=1.0)


@contextlib.asynccontextmanager
async def open_cluster(workdir: Path, environment: Mapping[str, str]) -> AsyncIterator[LocalCluster]:
    """A cluster in the folder, with the operator's log beside it. Exit ends every process.

    Raises NeedError if the trainer's packages are not installed.
    """
    check_trainer_image()
    cluster = LocalCluster(workdir, clock=time.time, rng=random.Random(), environment=environment)
    log = logging.FileHandler(workdir / "operator.log")
    log.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("cpr_operator")
    logger.addHandler(log)
    logger.setLevel(logging.INFO)
    try:
        yield cluster
    finally:
        await cluster.close()
        logger.removeHandler(log)
        log.close()


@contextlib.asynccontextmanager
async def operating(cluster: LocalCluster, job: JobView, timing: Timing = TIMING) -> AsyncIterator[None]:
    """Run the operator's passes for the job while the context lasts."""
    controller = Controller(cluster, time.time, timing=timing)
    workers = Workers(controller.run_pass, random.Random())
    ended = False

    def wake() -> None:
        if not ended:  # pods still end after the workers are closed
            workers.wake(job.namespace, job.name, DEBOUNCE_S)

    cluster.subscribe(wake)
    workers.wake(job.namespace, job.name)
    try:
        yield
    finally:
        ended = True
        await workers.close()
