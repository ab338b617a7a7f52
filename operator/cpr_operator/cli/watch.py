"""Follows one job to its end: shows its progress, kills members when due, and handles Ctrl-C."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from cpr_contract import env
from cpr_contract.codec import ContractError, from_json
from cpr_contract.limits import longest_report
from cpr_contract.reports import TrainerReport
from cpr_operator.api.status import TERMINAL_PHASES, Status
from cpr_operator.api.terminal_text import event_line
from cpr_operator.cli.console import SafeConsole
from cpr_operator.cli.kills import Kill, due
from cpr_operator.cli.progress import ClosableProgress, Pace, Snapshot
from cpr_operator.cluster.local import LocalCluster
from cpr_operator.cluster.views import JobView, PodView
from cpr_operator.reconcile.observe import takes_part

LOOK_EVERY_S = 0.2
REPORT_DEADLINE_S = 1.0


class Watch:
    """Polls a job several times a second until the run is over, and kills members when due.

    `pace` is the speed of the whole run so far, None before a leader's first report. `interrupted`: the job is asked to
    suspend, by the user or because nobody reads the output any more.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        job: JobView,
        *,
        kills: tuple[Kill, ...],
        console: SafeConsole,
        clock: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._job = job
        self._kills = kills
        self._progress = ClosableProgress(console, self.suspend)
        self._clock = clock
        self._start = clock()
        self._told = 0
        self.interrupted = False
        self._abandoned = asyncio.Event()
        self.pace: Pace | None = None

    def interrupt(self) -> None:
        """Handle Ctrl-C and SIGTERM: the first suspends the job, which saves everything; the next stops at once."""
        if self.interrupted:
            self._abandoned.set()
        self.suspend()

    def suspend(self) -> None:
        """Suspend the job, which saves everything. Once it is asked to, this does nothing."""
        if not self.interrupted:
            self.interrupted = True
            self._cluster.change_spec(self._job.namespace, self._job.name, {"suspend": True})
            self._progress.tell("Saving everything, then stopping. Press Ctrl-C again to stop at once.")

    @property
    def console(self) -> SafeConsole:
        """Where the outcome can be printed."""
        return self._progress.console

    async def follow(self) -> Status:
        """Wait until the job succeeded, failed, was suspended or the user gave up; its status then."""
        try:
            return await self._follow()
        finally:
            self._progress.close()

    async def _follow(self) -> Status:
        while True:
            job = await self._cluster.get_job(self._job.namespace, self._job.name)
            status = Status.model_validate(job.status)
            pods = await self._cluster.list_pods(job)
            leader = await self._ask_leader(status, pods)
            self._fire(leader, await self._cluster.list_pods(job))
            self._tell_events()
            self._progress.show(Snapshot(job.name, self._clock() - self._start, status, leader))
            if _is_over(job, status) or await self._nap():
                return status

    async def _nap(self) -> bool:
        """Wait until the next poll; True if the user gave up."""
        try:
            await asyncio.wait_for(self._abandoned.wait(), LOOK_EVERY_S)
        except TimeoutError:
            return False
        return True

    async def _ask_leader(self, status: Status, pods: tuple[PodView, ...]) -> TrainerReport | None:
        pod = running(pods, env.ROLE_TRAINER, status.leader)
        if pod is None:
            return None
        body = await self._cluster.fetch_report(pod, REPORT_DEADLINE_S, longest_report(len(status.members)))
        if body is None:
            return None
        try:
            report = from_json(TrainerReport, body)
        except ContractError:
            return None
        if not takes_part(report):  # it does not know yet how far training is
            return None
        now = self._clock()
        self.pace = self.pace.after(now, report.samples) if self.pace else Pace.begin(now, report.samples)
        return report

    def _fire(self, leader: TrainerReport | None, pods: tuple[PodView, ...]) -> None:
        if leader is None:
            return
        now, self._kills = due(self._kills, leader.samples, leader.total_samples)
        for kill in now:
            pod = running(pods, kill.role, kill.index)
            if pod is None or not self._cluster.signal_pod(
                self._job.namespace, pod.name, kill.number, whole=kill.pod
            ):  # it is being replaced, so the kill waits for its replacement
                self._kills += (kill,)
                continue
            what = f"all of {kill.target}" if kill.pod else kill.target
            self._progress.tell(f"> {kill.number.name} to {what} (pod {pod.name})")

    def _tell_events(self) -> None:
        events = tuple(self._cluster.events.values())
        for event in events[self._told :]:
            self._progress.tell(event_line(event.type, event.reason, event.message))
        self._told = len(events)


def running(pods: tuple[PodView, ...], role: str, index: int | None) -> PodView | None:
    """The member's newest pod with a running process. Pods of earlier incarnations may still exist."""
    found = (pod for pod in pods if (pod.role, pod.index, pod.phase) == (role, index, "Running"))
    return max(found, key=lambda pod: pod.incarnation, default=None)


def _is_over(job: JobView, status: Status) -> bool:
    suspended = status.phase == "Suspended" and bool(job.spec.get("suspend"))
    return status.phase in TERMINAL_PHASES or suspended
