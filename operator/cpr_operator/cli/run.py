"""`cprjob run`: runs the operator's controller over processes of this machine until the job is over."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from cpr_operator.api.validate import parse_spec
from cpr_operator.cli.command_errors import DocumentError, OptionError
from cpr_operator.cli.command_options import check_file, check_folder
from cpr_operator.cli.console import INTERRUPTED, OutputClosedError, SafeConsole
from cpr_operator.cli.document import changed_spec, read_job
from cpr_operator.cli.kill_options import Kill, check_targets
from cpr_operator.cli.report import next_local_step, print_summary, report
from cpr_operator.cli.run_monitor import RunMonitor
from cpr_operator.cli.trainer_process import check_trainer_image
from cpr_operator.cluster.local import LocalCluster
from cpr_operator.cluster.views import JobView
from cpr_operator.controller import Controller
from cpr_operator.queue import ReconcileQueue
from cpr_operator.reconcile import Timing

#: The folder of runs without --workdir.
RUNS = Path("cprjob-runs")
#: The job of a local run stays in its folder until the user deletes the folder: its model is yet to be exported.
UNLIMITED_TTL = {"ttlSecondsAfterFinished": None}
#: Seconds to wait after a pod's change, so that several changes share a pass.
DEBOUNCE_S = 0.05
#: Passes are frequent, because requests are cheap on one machine and runs are short.
TIMING = Timing(running_s=1.0, floor_s=0.2, changing_s=0.2, progress_s=1.0)


@contextlib.asynccontextmanager
async def open_cluster(workdir: Path, environment: Mapping[str, str]) -> AsyncIterator[LocalCluster]:
    """Open a cluster in the folder, with the operator's log next to it. Exit ends every process.

    Raises MissingPackageError without the trainer's packages.
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
    queue = ReconcileQueue(controller.run_pass, random.Random())
    ended = False

    def wake() -> None:
        if not ended:  # pods still end after the queue is closed
            queue.wake(job.namespace, job.name, DEBOUNCE_S)

    cluster.subscribe(wake)
    queue.wake(job.namespace, job.name)
    try:
        yield
    finally:
        ended = True
        await queue.close()


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of the command: it runs `file`, or without one resumes the job in `workdir`.

    `changes` of the job's spec are PATH=VALUE.
    """

    file: Path | None
    kills: tuple[Kill, ...]
    changes: tuple[str, ...]
    workdir: Path | None
    report: Path | None


def run(options: RunOptions, console: SafeConsole) -> int:
    """Run a job to its end and return the exit code: 0 only if it succeeded.

    Raises DocumentError, InvalidSpecError, OptionError before any process is started.
    """
    return asyncio.run(_run(options, console))


async def _run(options: RunOptions, console: SafeConsole) -> int:
    workdir = _workdir(options)
    check_folder("--workdir", workdir)
    if options.report is not None:
        check_file("--report", options.report)
    document = None if options.file is None else read_job(options.file, options.changes, workdir / "store")
    if document is not None:
        _check_kills(options.kills, document["spec"])
    async with open_cluster(workdir, os.environ) as cluster:
        job = await _open_job(cluster, document, workdir, options.changes)
        _check_kills(options.kills, job.spec)
        monitor = RunMonitor(cluster, job, options.kills, console)
        with _interrupts(monitor):
            async with operating(cluster, job):
                status = await monitor.follow()
    speed = monitor.throughput.samples_per_s if monitor.throughput else None
    with contextlib.suppress(OutputClosedError, OSError):  # then the folder alone has the outcome
        print_summary(monitor.console, job.name, status, speed, next_local_step(status, workdir))
    if options.report is not None:
        try:
            options.report.write_text(json.dumps(report(job.name, status, speed), indent=2) + "\n", "utf-8")
        except OSError as error:
            again = f"cprjob report --workdir {workdir} --json prints it again"
            raise OptionError(f"--report {options.report}: {error.strerror}; {again}") from error
    if status.phase == "Succeeded":
        return 0
    return INTERRUPTED if monitor.interrupted else 1


def _workdir(options: RunOptions) -> Path:
    """Return the folder of this run as an absolute path, because the names of saves contain it."""
    if options.workdir is not None:
        return options.workdir.resolve()
    if options.file is None:
        raise DocumentError("--resume needs --workdir DIR, the folder of the run to resume")
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    return (RUNS / f"{options.file.stem}-{stamp}").resolve()


def _check_kills(kills: tuple[Kill, ...], spec: Any) -> None:
    parsed = parse_spec(spec)
    check_targets(kills, parsed.trainers.replicas, parsed.shards.replicas)


async def _open_job(
    cluster: LocalCluster, document: dict[str, Any] | None, workdir: Path, changes: tuple[str, ...]
) -> JobView:
    """Create the job of a new run, or resume the one in the folder with the changes applied.

    Raises DocumentError, InvalidSpecError.
    """
    jobs = await cluster.list_jobs(())
    match document, jobs:
        case None, (job,):
            spec = changed_spec(job.spec, job.status, changes) if changes else {}
            return cluster.change_spec(job.namespace, job.name, {**spec, "suspend": False, **UNLIMITED_TTL})
        case None, _:
            raise DocumentError(f"there is no job to resume in {workdir}")
        case dict(), ():
            return cluster.create_job({**document, "spec": {**document["spec"], **UNLIMITED_TTL}})
        case _:
            raise DocumentError(f"{workdir} already contains a job; resume it with --resume, or choose another folder")


@contextlib.contextmanager
def _interrupts(monitor: RunMonitor) -> Iterator[None]:
    """Handle Ctrl-C, SIGTERM and SIGHUP by the monitor.

    SIGHUP only suspends, because a terminal that is closed may send it twice. Under `nohup` it is ignored.
    """
    handlers = {signal.SIGINT: monitor.interrupt, signal.SIGTERM: monitor.interrupt}
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        handlers[signal.SIGHUP] = monitor.suspend
    loop = asyncio.get_running_loop()
    for number, handle in handlers.items():
        loop.add_signal_handler(number, handle)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)
