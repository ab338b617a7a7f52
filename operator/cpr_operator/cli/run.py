"""`cprjob run`: the operator's own controller over processes of this machine."""

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

from cpr_operator.api.status import Status
from cpr_operator.api.validate import parse_spec
from cpr_operator.cli import check_trainer_image
from cpr_operator.cli.console import (
    INTERRUPTED,
    OptionError,
    OutputClosedError,
    SafeConsole,
    check_file,
    check_folder,
)
from cpr_operator.cli.document import DocumentError, changed_spec, read_job
from cpr_operator.cli.kills import Kill, check_targets
from cpr_operator.cli.report import next_step_here, print_summary, report
from cpr_operator.cli.watch import Watch
from cpr_operator.cluster.local import LocalCluster
from cpr_operator.cluster.views import JobView
from cpr_operator.controller import Controller
from cpr_operator.queue import ReconcileQueue
from cpr_operator.reconcile import Timing

# The operator's own controller over processes of this machine, for as long as a command lasts.


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


RUNS = Path("cprjob-runs")
#: The job of a local run stays in its folder until the user deletes the folder: its model is yet to be exported.
KEPT = {"ttlSecondsAfterFinished": None}


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What the command line asks for: to run `file`, or to resume the job in `workdir` if it is None.

    `changes` of the job's spec are PATH=VALUE.
    """

    file: Path | None
    kills: tuple[Kill, ...]
    changes: tuple[str, ...]
    workdir: Path | None
    report: Path | None


def run(options: RunOptions, console: SafeConsole) -> int:
    """Run a job to its end; returns the exit code: 0 only if it succeeded.

    Raises DocumentError, InvalidDocumentError, KillError, OptionError before any process is started.
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
        watch, status = await _follow(cluster, job, options.kills, console)
    speed = watch.pace.samples_per_s if watch.pace else None
    with contextlib.suppress(OutputClosedError, OSError):  # then the folder alone has the outcome
        print_summary(watch.console, job.name, status, speed, next_step_here(status, workdir))
    if options.report is not None:
        try:
            options.report.write_text(json.dumps(report(job.name, status, speed), indent=2) + "\n", "utf-8")
        except OSError as error:
            again = f"cprjob report --workdir {workdir} --json prints it again"
            raise OptionError(f"--report {options.report}: {error.strerror}; {again}") from error
    if status.phase == "Succeeded":
        return 0
    return INTERRUPTED if watch.interrupted else 1


async def _follow(
    cluster: LocalCluster, job: JobView, kills: tuple[Kill, ...], console: SafeConsole
) -> tuple[Watch, Status]:
    """Run passes and watch until the job is over."""
    watch = Watch(cluster, job, kills=kills, console=console, clock=time.monotonic)
    with _interrupts(watch):
        async with operating(cluster, job):
            return watch, await watch.follow()


def _workdir(options: RunOptions) -> Path:
    """The folder of this run; absolute, because the names of saves contain it."""
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
    """The job of a new run, or the suspended one in the folder with the changes applied.

    Raises DocumentError, InvalidDocumentError.
    """
    jobs = await cluster.list_jobs(())
    match document, jobs:
        case None, (job,):
            spec = changed_spec(job.spec, job.status, changes) if changes else {}
            return cluster.change_spec(job.namespace, job.name, {**spec, "suspend": False, **KEPT})
        case None, _:
            raise DocumentError(f"there is no job to resume in {workdir}")
        case dict(), ():
            return cluster.create_job({**document, "spec": {**document["spec"], **KEPT}})
        case _:
            raise DocumentError(f"{workdir} already contains a job; resume it with --resume, or choose another folder")


@contextlib.contextmanager
def _interrupts(watch: Watch) -> Iterator[None]:
    """Send Ctrl-C, SIGTERM and SIGHUP to the watch while the context lasts.

    A terminal that is closed may send SIGHUP twice, and more than that stops nothing at once. `nohup` ignores it.
    """
    handlers = {signal.SIGINT: watch.interrupt, signal.SIGTERM: watch.interrupt}
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        handlers[signal.SIGHUP] = watch.suspend
    loop = asyncio.get_running_loop()
    for number, handle in handlers.items():
        loop.add_signal_handler(number, handle)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)
