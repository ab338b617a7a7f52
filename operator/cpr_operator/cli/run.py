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

from cpr_contract import env
from cpr_contract.codec import ContractError, from_json
from cpr_contract.limits import max_report_bytes
from cpr_contract.reports import TrainerReport
from cpr_operator.api.status import TERMINAL_PHASES, Status
from cpr_operator.api.terminal_text import event_line
from cpr_operator.api.validate import parse_spec
from cpr_operator.cli.command_errors import DocumentError, OptionError
from cpr_operator.cli.command_options import check_file, check_folder
from cpr_operator.cli.console import INTERRUPTED, OutputClosedError, SafeConsole
from cpr_operator.cli.document import changed_spec, read_job
from cpr_operator.cli.kill_options import Kill, check_targets, due
from cpr_operator.cli.progress_display import ClosableProgress, ProgressState, Throughput
from cpr_operator.cli.report import next_local_step, print_summary, report
from cpr_operator.cli.trainer_process import check_trainer_image
from cpr_operator.cluster.certificates import pod_tls
from cpr_operator.cluster.local.cluster import LocalCluster
from cpr_operator.cluster.views import JobView, PodView
from cpr_operator.controller.controller import Controller
from cpr_operator.queue import ReconcileQueue
from cpr_operator.reconcile import Timing
from cpr_operator.reconcile.observe import takes_part
from cpr_operator.reconcile.publishing import is_unpublished

#: The folder of runs without --workdir.
RUNS = Path("cprjob-runs")
#: The job of a local run stays in its folder until the user deletes the folder: its model is yet to be exported. No
#: other cluster runs it.
LOCAL_FIELDS = {"ttlSecondsAfterFinished": None, "managedBy": None}
#: Seconds between two looks at a job with an unchanged status, and while kills wait for their sample.
POLL_S, KILLS_POLL_S = 1.0, 0.2
REPORT_DEADLINE_S = 1.0
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
    controller = Controller(cluster, time.time, timing=timing, identity=cluster.identity.get)
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


async def run(options: RunOptions, console: SafeConsole) -> int:
    """Run a job to its end and return the exit code: 0 only if it succeeded.

    Raises DocumentError, InvalidSpecError, OptionError before any process is started.
    """
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
    speed = monitor.throughput.samples_per_s
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
    publishers = 0 if parsed.publish is None else 1
    check_targets(kills, parsed.trainers.replicas, parsed.shards.replicas, publishers)


async def _open_job(
    cluster: LocalCluster, document: dict[str, Any] | None, workdir: Path, changes: tuple[str, ...]
) -> JobView:
    """Create the job of a new run, or resume the one in the folder with the changes applied."""
    jobs = await cluster.list_jobs(())
    match document, jobs:
        case None, (job,):
            spec = changed_spec(job.spec, job.status, changes) if changes else {}
            return cluster.change_spec(job.namespace, job.name, {**spec, "suspend": False, **LOCAL_FIELDS})
        case None, _:
            raise DocumentError(f"there is no job to resume in {workdir}")
        case dict(), ():
            return cluster.create_job({**document, "spec": {**document["spec"], **LOCAL_FIELDS}})
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


# --- a run until its end


class RunMonitor:
    """Follows a job until the run is over, and kills members when due.

    `throughput` is that of the whole run so far. `interrupted` is true once the
    user, or the closed output, has suspended the job.
    """

    def __init__(self, cluster: LocalCluster, job: JobView, kills: tuple[Kill, ...], console: SafeConsole) -> None:
        self._cluster = cluster
        self._job = job
        self._kills = kills
        self._progress = ClosableProgress(console, self.suspend)
        self._start = time.monotonic()
        self.interrupted = self._abandoned = False
        self._wake = asyncio.Event()
        cluster.on_status(self._wake.set)
        self.throughput = Throughput()

    def interrupt(self) -> None:
        """Handle Ctrl-C and SIGTERM: the first suspends the job, which saves everything; the next stops at once."""
        if self.interrupted:
            self._abandoned = True
            self._wake.set()
        self.suspend()

    def suspend(self) -> None:
        """Suspend the job, which saves everything. Further calls do nothing."""
        if not self.interrupted:
            self.interrupted = True
            self._cluster.change_spec(self._job.namespace, self._job.name, {"suspend": True})
            self._progress.print("Saving everything, then stopping. Press Ctrl-C again to stop at once.")

    @property
    def console(self) -> SafeConsole:
        """Return the console for the outcome."""
        return self._progress.console

    async def follow(self) -> Status:
        """Wait until the job succeeded, failed, was suspended or the user gave up, and return its status."""
        shown = 0
        with contextlib.closing(self._progress):
            while True:
                self._wake.clear()  # before the job is read, so that no later status is missed
                job = await self._cluster.get_job(self._job.namespace, self._job.name)
                status = Status.model_validate(job.status)
                leader = await self._leader_report(status, await self._cluster.list_pods(job))
                if leader is not None:
                    self._kill_due(leader, await self._cluster.list_pods(job))
                events = tuple(self._cluster.events.values())
                for event in events[shown:]:
                    self._progress.print(event_line(event.type, event.reason, event.message))
                shown = len(events)
                self._progress.show(ProgressState(job.name, time.monotonic() - self._start, status, leader))
                suspended = status.phase == "Suspended" and bool(job.spec.get("suspend"))
                ended = status.phase in TERMINAL_PHASES or suspended
                unpublished = job.spec.get("publish") is not None and is_unpublished(status, time.time())
                if ended and not unpublished and not publishes(await self._cluster.list_pods(job)):
                    return status
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), KILLS_POLL_S if self._kills else POLL_S)
                if self._abandoned:
                    return status

    async def _leader_report(self, status: Status, pods: tuple[PodView, ...]) -> TrainerReport | None:
        pod = running_pod(pods, env.ROLE_TRAINER, status.leader)
        if pod is None:
            return None
        ca = status.runtime.ca if status.runtime else ""
        tls = pod_tls(pod, ca, await self._cluster.identity.get()) if ca else None
        max_bytes = max_report_bytes(len(status.members))
        body = await self._cluster.fetch_report(pod, REPORT_DEADLINE_S, max_bytes, tls=tls)
        if body is None:
            return None
        try:
            report = from_json(TrainerReport, body)
        except ContractError:
            return None
        if not takes_part(report):  # it has no position in the training yet
            return None
        self.throughput.add(time.monotonic(), report.samples)
        return report

    def _kill_due(self, leader: TrainerReport, pods: tuple[PodView, ...]) -> None:
        now, self._kills = due(self._kills, leader.samples, leader.total_samples)
        for kill in now:
            pod = running_pod(pods, kill.role, kill.index)
            if pod is None or not self._cluster.signal_pod(
                self._job.namespace, pod.name, kill.number, whole=kill.pod
            ):  # it is being replaced, so the kill waits for its replacement
                self._kills += (kill,)
                continue
            target = f"all of {kill.target}" if kill.pod else kill.target
            self._progress.print(f"> {kill.number.name} to {target} (pod {pod.name})")


def publishes(pods: tuple[PodView, ...]) -> bool:
    """Return whether a publisher may still publish the newest model, after the job has ended."""
    return any(pod.role == env.ROLE_PUBLISHER and not pod.ended for pod in pods)


def running_pod(pods: tuple[PodView, ...], role: str, index: int | None) -> PodView | None:
    """Return the newest pod of a member that runs. Pods of earlier incarnations may still exist."""
    found = (pod for pod in pods if (pod.role, pod.index, pod.phase) == (role, index, "Running"))
    return max(found, key=lambda pod: pod.incarnation, default=None)
