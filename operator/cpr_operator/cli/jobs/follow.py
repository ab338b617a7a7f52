"""Watches a job on a cluster, as `cprjob run` shows one on this machine, until it is over."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live

from cpr_operator.api.status import Status
from cpr_operator.cli.jobs.show import table
from cpr_operator.cli.progress import Progress, open_progress
from cpr_operator.cli.snapshot import Pace, Snapshot
from cpr_operator.cli.summary import next_step_there, print_summary
from cpr_operator.cli.where import Where

if TYPE_CHECKING:
    from cpr_operator.client import Client, Job

#: Seconds between two looks at all jobs.
LOOK_EVERY_S = 2.0


def follow_job(client: Client, name: str, where: Where, console: Console, *, from_start: bool) -> Status:
    """Show the job's progress and events until it is over, then its outcome; return its status then.

    from_start: show the events before now, too. Raises ClientError.
    """
    with _progress(console) as progress:
        told = set() if from_start else {event.uid for event in client.events(name)}
        watched = Watched(progress, told)
        for job in client.watch(name):
            watched.show(job)
            watched.tell(client)
    print_summary(console, name, job.status, watched.samples_per_s, next_step_there(job.status, name, where.options))
    return job.status


class Watched:
    """What of a job was seen so far: the events `told`, by their uid, and its pace."""

    def __init__(self, progress: Progress, told: set[str]) -> None:
        self._progress = progress
        self._told = told
        self._pace: Pace | None = None
        self._name = ""

    @property
    def samples_per_s(self) -> float | None:
        """Training speed over all that was watched; None if nothing was trained meanwhile."""
        return self._pace.samples_per_s if self._pace else None

    def show(self, job: Job) -> None:
        """Show how the job stands."""
        self._name, status = job.name, job.status
        done, when = status.progress.samples, status.progress.updated
        if when is not None:
            self._pace = self._pace.after(when, done) if self._pace else Pace.begin(when, done)
        self._progress.show(Snapshot(job.name, elapsed_s(status, time.time()), status, None))

    def tell(self, client: Client) -> None:
        """Print the events that are new. An API server that cannot answer now is asked again next time."""
        from cpr_operator.client import UnavailableError  # noqa: PLC0415 -- loaded with the client

        with contextlib.suppress(UnavailableError):
            for event in client.events(self._name):
                if event.uid not in self._told:
                    self._told.add(event.uid)
                    self._progress.tell(event.line)


def elapsed_s(status: Status, now: float) -> float:
    """Seconds since the first pods were created, until the job's end."""
    if status.start_time is None:
        return 0.0
    return max(0.0, (now if status.completion_time is None else status.completion_time) - status.start_time)


def follow_all(client: Client, console: Console, *, all_namespaces: bool) -> None:
    """Show a table of all jobs: on a terminal again and again until Ctrl-C, elsewhere once. Raises ClientError."""
    if not console.is_terminal:
        jobs = client.list(all_namespaces=all_namespaces)
        console.print(table(jobs, time.time(), wide=True, namespaces=all_namespaces), soft_wrap=True)
        return
    with Live(console=console, auto_refresh=False) as live:
        while True:
            jobs = client.list(all_namespaces=all_namespaces)
            live.update(table(jobs, time.time(), wide=True, namespaces=all_namespaces), refresh=True)
            time.sleep(LOOK_EVERY_S)


@contextlib.contextmanager
def _progress(console: Console) -> Iterator[Progress]:
    progress = open_progress(console)
    try:
        yield progress
    finally:
        progress.close()
