"""A job of this machine that follows files of clicks, with members that are killed between two of its models."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cpr_contract.codec import from_json
from cpr_contract.spec import JobSpec
from cpr_operator.api.status import Status
from cpr_operator.cli.run import open_cluster, operating, running_pod
from cpr_operator.cluster.local.cluster import LocalCluster
from cpr_operator.cluster.views import JobView, PodView
from cpr_operator.reconcile import Timing
from cpr_trainer.store import open_store
from cprjob_bench.commands.freshness_bench import document
from cprjob_bench.roles.freshness import write_clicks
from support.pins import Pins
from support.served_models import ServedModels

#: Clicks in a file, and seconds between two files.
CLICKS, EVERY_S = 100, 0.25


@dataclass
class Clicks:
    """The folder of the data, to which files come."""

    folder: Path
    files: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def write(self) -> None:
        """Write a file of clicks on new items."""
        items = range(self.files * CLICKS, (self.files + 1) * CLICKS)
        write_clicks(self.folder, items, self.files)
        self.files += 1

    @contextmanager
    def coming(self) -> Iterator[None]:
        """Write files in a thread, so that kills delay none."""
        thread = threading.Thread(target=self._write_all)
        thread.start()
        try:
            yield
        finally:
            self.over.set()
            thread.join()

    def _write_all(self) -> None:
        while not self.over.wait(EVERY_S):
            self.write()


def prepare(folder: Path, name: str) -> tuple[Clicks, dict[str, Any]]:
    """Return the data, with its first file, and the manifest of a job that publishes, and never goes without replay."""
    data = folder / "data"
    data.mkdir()
    clicks = Clicks(data)
    clicks.write()
    manifest = document(name, data, folder, publishes=True)
    manifest["spec"]["recovery"] = {"replay": {"mode": "Required"}}
    return clicks, manifest


async def status_of(cluster: LocalCluster, job: JobView) -> Status:
    return Status.model_validate((await cluster.get_job(job.namespace, job.name)).status)


async def until_published(cluster: LocalCluster, job: JobView, served: ServedModels, more: int) -> None:
    """Wait until all members train, and this many further models are served. Check a copy of the last one."""
    due = served.follower.sequence + more
    while True:
        status = await status_of(cluster, job)
        anchors = {anchor.key for anchor in status.anchors}
        if status.phase in {"Running", "Succeeded"} and status.recovery is None and served.copy(due, anchors):
            served.check(job_of(status), open_store(job_of(status).snapshots.store, None, None))
            return
        assert status.phase != "Failed", status.conditions
        await asyncio.sleep(0.1)


async def train_and_kill(
    folder: Path, clicks: Clicks, served: ServedModels, manifest: dict[str, Any], kills: Sequence[tuple[str, int]]
) -> Status:
    """Run the job, kill one member after the other while clicks come, and end its data. kills: role and index of each.

    Two further models are served before each next kill, and the second is copied.
    """
    async with open_cluster(folder, os.environ) as cluster:
        job = cluster.create_job(manifest)

        async def running(role: str, index: int, than: str = "") -> PodView:
            """Wait until a member has a pod that runs, and is another one."""
            while (pod := running_pod(await cluster.list_pods(job), role, index)) is None or pod.name == than:  # noqa: ASYNC110 -- there is no event
                await asyncio.sleep(0.1)
            return pod

        async with operating(cluster, job, Timing(changing_s=0.2)):
            with clicks.coming():
                await until_published(cluster, job, served, 1)
                for role, index in kills:
                    pod = await running(role, index)
                    assert cluster.signal_pod(job.namespace, pod.name, signal.SIGKILL)
                    await running(role, index, than=pod.name)
                    await until_published(cluster, job, served, 2)
            await asyncio.to_thread(end_data, await status_of(cluster, job), clicks.files * CLICKS)
            while (status := await status_of(cluster, job)).phase != "Succeeded" or not is_published(status):
                assert status.phase != "Failed", status.conditions
                await asyncio.sleep(0.1)
        return status


def is_published(status: Status) -> bool:
    return status.result is not None and status.published is not None and status.published.anchor == status.result.key


def job_of(status: Status) -> JobSpec:
    assert status.runtime is not None
    return from_json(JobSpec, status.runtime.job_spec)


def end_data(status: Status, rows: int) -> None:
    """Pin the end once all rows are pinned. The leader may pin void samples at the same time."""
    pins = Pins(job_of(status))
    while not pins.order.has_ended:
        if pins.read() == rows:
            pins.end()
        time.sleep(0.1)
