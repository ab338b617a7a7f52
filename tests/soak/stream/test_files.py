"""Clicks come as files while shards, the trainer and the publisher are killed in turn, and a follower has the models.

Days are compressed into minutes: a file, a look, a save and a publication are each due within a second. The store is a
folder, which no test can kill; `tests/soak/stores` has servers.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cpr_contract import env
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
from cprjob_serving import Follower
from support.pins import Pins
from support.served_models import ServedModels

pytestmark = [pytest.mark.dist, pytest.mark.timeout(1800, func_only=True)]

#: Clicks in a file, seconds between two files, and how often each process is killed.
CLICKS, EVERY_S, ROUNDS = 100, 0.25, 2
KILLED = ((env.ROLE_SHARD, 0), (env.ROLE_PUBLISHER, 0), (env.ROLE_TRAINER, 0), (env.ROLE_SHARD, 1))


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


async def status_of(cluster: LocalCluster, job: JobView) -> Status:
    return Status.model_validate((await cluster.get_job(job.namespace, job.name)).status)


async def until_published(cluster: LocalCluster, job: JobView, served: ServedModels, more: int) -> None:
    """Wait until all members train, and this many further models are served. The last one is copied."""
    due = served.follower.sequence + more
    while True:
        status = await status_of(cluster, job)
        anchors = {anchor.key for anchor in status.anchors}
        if status.phase in {"Running", "Succeeded"} and status.recovery is None and served.copy(due, anchors):
            return
        assert status.phase != "Failed", status.conditions
        await asyncio.sleep(0.1)


async def train_and_kill(folder: Path, clicks: Clicks, served: ServedModels, manifest: dict[str, object]) -> Status:
    """Run the job, kill one process after the other while clicks come, and end its data."""
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
                for role, index in ROUNDS * KILLED:
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


def test_stream_of_clicks_is_trained_once_and_served_while_processes_are_killed(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("data", "work", "copies")}
    for folder in folders.values():
        folder.mkdir()
    clicks = Clicks(folders["data"])
    clicks.write()
    manifest = document("stream", folders["data"], tmp_path, publishes=True)
    spec = manifest["spec"]
    spec["accuracyBudget"] = {"portionOfLostSamples": 0}
    spec["recovery"] = {"replay": {"mode": "Required"}}
    spec["failurePolicy"] = {"silenceSeconds": 60, "restartLimit": {"count": 1000}}
    spec["snapshots"]["keep"] = 128  # the copied models are compared at the end
    with Follower(spec["publish"]["to"], tmp_path / "followed", every_s=0.2) as follower:
        served = ServedModels(follower, folders["copies"])
        status = asyncio.run(train_and_kill(folders["work"], clicks, served, manifest))
        assert status.result is not None
        while not served.copy(1, {status.result.key}):
            time.sleep(0.1)
    pins = Pins(job_of(status))
    pins.read()
    assert pins.trained()[0] == Counter(range(clicks.files * CLICKS))
    assert not any(status.ledger.ranges), "nothing is lost"
    assert len(served.copies) == 2 + ROUNDS * len(KILLED)
    served.check(job_of(status), open_store(job_of(status).snapshots.store, None, None))
