"""Follows jobs on a cluster: one until it is over, or a table of all."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live

from cpr_operator.api.status import Status
from cpr_operator.cli.command_options import ClusterOptions
from cpr_operator.cli.job_views import table
from cpr_operator.cli.progress_display import Progress, ProgressState, Throughput, open_progress
from cpr_operator.cli.report import next_step_on_cluster, print_summary

if TYPE_CHECKING:
    from cpr_operator.client import Client, Job

#: Seconds between two requests for all jobs.
POLL_S = 2.0


def follow_job(client: Client, name: str, kube: ClusterOptions, console: Console, *, from_start: bool) -> Status:
    """Show the job's progress and events until it is over, then its outcome, and return its last status.

    from_start: show earlier events, too. Raises ClientError.
    """
    with _progress(console) as progress:
        shown = set() if from_start else {event.uid for event in client.events(name)}
        monitor = JobMonitor(progress, shown)
        for job in client.watch(name):
            monitor.show(job)
            monitor.print_events(client)
    next_step = next_step_on_cluster(job.status, name, kube.text)
    print_summary(console, name, job.status, monitor.samples_per_s, next_step)
    return job.status


class JobMonitor:
    """The events of a job that were `shown`, by their uid, and its throughput so far."""

    def __init__(self, progress: Progress, shown: set[str]) -> None:
        self._progress = progress
        self._shown = shown
        self._throughput: Throughput | None = None
        self._name = ""

    @property
    def samples_per_s(self) -> float | None:
        """Return the training speed since the start of the monitor; None if nothing was trained."""
        return self._throughput.samples_per_s if self._throughput else None

    def show(self, job: Job) -> None:
        """Show the state of the job."""
        self._name, status = job.name, job.status
        done, when = status.progress.samples, status.progress.updated
        if when is not None:
            before = self._throughput
            self._throughput = before.after(when, done) if before else Throughput.begin(when, done)
        self._progress.show(ProgressState(job.name, elapsed_s(status, time.time()), status, None))

    def print_events(self, client: Client) -> None:
        """Print new events. While the API server is unavailable, they are left to the next call."""
        from cpr_operator.client import UnavailableError  # noqa: PLC0415 -- slow to import

        with contextlib.suppress(UnavailableError):
            for event in client.events(self._name):
                if event.uid not in self._shown:
                    self._shown.add(event.uid)
                    self._progress.print(event.line)


def elapsed_s(status: Status, now: float) -> float:
    """Return the seconds from the creation of the first pods to now, or to the end of the job."""
    if status.start_time is None:
        return 0.0
    return max(0.0, (now if status.completion_time is None else status.completion_time) - status.start_time)


def follow_all(client: Client, console: Console, *, all_namespaces: bool) -> None:
    """Show a table of all jobs: on a terminal until Ctrl-C, else once. Raises ClientError."""
    if not console.is_terminal:
        jobs = client.list(all_namespaces=all_namespaces)
        console.print(table(jobs, time.time(), wide=True, namespaces=all_namespaces), soft_wrap=True)
        return
    with Live(console=console, auto_refresh=False) as live:
        while True:
            jobs = client.list(all_namespaces=all_namespaces)
            live.update(table(jobs, time.time(), wide=True, namespaces=all_namespaces), refresh=True)
            time.sleep(POLL_S)


@contextlib.contextmanager
def _progress(console: Console) -> Iterator[Progress]:
    progress = open_progress(console)
    try:
        yield progress
    finally:
        progress.close()
