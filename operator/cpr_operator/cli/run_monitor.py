"""Follows a local run to its end: shows its progress, kills members when due, and handles Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import time

from cpr_contract import env
from cpr_contract.codec import ContractError, from_json
from cpr_contract.limits import max_report_bytes
from cpr_contract.reports import TrainerReport
from cpr_operator.api.status import TERMINAL_PHASES, Status
from cpr_operator.api.terminal_text import event_line
from cpr_operator.cli.console import SafeConsole
from cpr_operator.cli.kill_options import Kill, due
from cpr_operator.cli.progress_display import ClosableProgress, ProgressState, Throughput
from cpr_operator.cluster.local import LocalCluster
from cpr_operator.cluster.views import JobView, PodView
from cpr_operator.reconcile.observe import takes_part

POLL_S = 0.2
REPORT_DEADLINE_S = 1.0


class RunMonitor:
    """Polls a job several times a second until the run is over, and kills members when due.

    `throughput` is that of the whole run so far, None before a leader's first report. `interrupted` is true once the
    user, or the closed output, has suspended the job.
    """

    def __init__(self, cluster: LocalCluster, job: JobView, kills: tuple[Kill, ...], console: SafeConsole) -> None:
        self._cluster = cluster
        self._job = job
        self._kills = kills
        self._progress = ClosableProgress(console, self.suspend)
        self._start = time.monotonic()
        self.interrupted = False
        self._abandoned = asyncio.Event()
        self.throughput: Throughput | None = None

    def interrupt(self) -> None:
        """Handle Ctrl-C and SIGTERM: the first suspends the job, which saves everything; the next stops at once."""
        if self.interrupted:
            self._abandoned.set()
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
                if status.phase in TERMINAL_PHASES or suspended:
                    return status
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._abandoned.wait(), POLL_S)
                    return status

    async def _leader_report(self, status: Status, pods: tuple[PodView, ...]) -> TrainerReport | None:
        pod = running_pod(pods, env.ROLE_TRAINER, status.leader)
        if pod is None:
            return None
        body = await self._cluster.fetch_report(pod, REPORT_DEADLINE_S, max_report_bytes(len(status.members)))
        if body is None:
            return None
        try:
            report = from_json(TrainerReport, body)
        except ContractError:
            return None
        if not takes_part(report):  # it has no position in the training yet
            return None
        now = time.monotonic()
        self.throughput = (
            self.throughput.after(now, report.samples) if self.throughput else Throughput.begin(now, report.samples)
        )
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


def running_pod(pods: tuple[PodView, ...], role: str, index: int | None) -> PodView | None:
    """Return the newest pod of a member that runs. Pods of earlier incarnations may still exist."""
    found = (pod for pod in pods if (pod.role, pod.index, pod.phase) == (role, index, "Running"))
    return max(found, key=lambda pod: pod.incarnation, default=None)
