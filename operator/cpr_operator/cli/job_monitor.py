"""Follows jobs on a cluster: one until it is over, or a table of all."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live

from cpr_operator.api.status import Status
from cpr_operator.cli.command_options import ClusterOptions
from cpr_operator.cli.job_views import table
from cpr_operator.cli.progress_display import ProgressState, Throughput, open_progress
from cpr_operator.cli.report import next_step_on_cluster, print_summary

if TYPE_CHECKING:
    from cpr_operator.client import Client

#: Seconds between two requests for all jobs.
POLL_S = 2.0


def follow_job(client: Client, name: str, kube: ClusterOptions, console: Console, *, from_start: bool) -> Status:
    """Show the job's progress and events until it is over, then its outcome, and return its last status.

    from_start: show earlier events, too. Raises ClientError.
    """
    from cpr_operator.client import UnavailableError  # noqa: PLC0415 -- slow to import

    throughput: Throughput | None = None
    with contextlib.closing(open_progress(console)) as progress:
        shown = set() if from_start else {event.uid for event in client.events(name)}
        for job in client.watch(name):
            status, now = job.status, time.time()
            done, when = status.progress.samples, status.progress.updated
            if when is not None:
                throughput = throughput.after(when, done) if throughput else Throughput.begin(when, done)
            elapsed_s = max(0.0, (status.completion_time or now) - (status.start_time or now))
            progress.show(ProgressState(job.name, elapsed_s, status, None))
            with contextlib.suppress(UnavailableError):  # the next round prints the events
                for event in client.events(name):
                    if event.uid not in shown:
                        shown.add(event.uid)
                        progress.print(event.line)
    next_step = next_step_on_cluster(status, name, kube.text)
    print_summary(console, name, status, throughput.samples_per_s if throughput else None, next_step)
    return status


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
