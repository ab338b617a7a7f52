"""Clicks come as files while shards, the trainer and the publisher are killed in turn, and a follower has the models.

Days are compressed into minutes: a file, a look, a save and a publication are each due within a second. The store is a
folder, which no test can kill; `tests/soak/stores` has servers.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
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
from cpr_operator.cluster.views import JobView
from cpr_operator.reconcile import Timing
from cprjob_bench.commands.freshness_bench import document
from cprjob_bench.roles.freshness import write_clicks
from cprjob_serving import Follower
from support.pins import Pins
from support.published_job import files_of
from support.runs import CPRJOB

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
        write_clicks(self.folder / f"clicks-{self.files:06d}.csv", items, self.files)
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


@dataclass
class Served:
    """The models that a follower has served: their numbers, and copies of some of them by their anchor."""

    follower: Follower
    copies: Path
    sequences: list[int] = field(default_factory=list)

    def look(self) -> None:
        """Note the present model."""
        self.sequences.append(self.follower.sequence)

    def copy(self) -> None:
        """Copy the present model. The follower deletes it once there are two newer ones."""
        model = self.follower.model
        shutil.copytree(model.folder, self.copies / model.about["anchor"].replace("/", "."))


async def status_of(cluster: LocalCluster, job: JobView) -> Status:
    return Status.model_validate((await cluster.get_job(job.namespace, job.name)).status)


async def until_published(cluster: LocalCluster, job: JobView, served: Served, more: int) -> None:
    """Wait until all members train, and the follower has this many further models."""
    due = served.follower.sequence + more
    while True:
        served.look()
        status = await status_of(cluster, job)
        if status.phase in {"Running", "Succeeded"} and status.recovery is None and served.follower.sequence >= due:
            return
        assert status.phase != "Failed", status.conditions
        await asyncio.sleep(0.1)


async def train_and_kill(folder: Path, clicks: Clicks, served: Served, manifest: dict[str, object]) -> Status:
    """Run the job, kill one process after the other while clicks come, and end its data."""
    async with open_cluster(folder, os.environ) as cluster:
        job = cluster.create_job(manifest)
        async with operating(cluster, job, Timing(changing_s=0.2)):
            with clicks.coming():
                await until_published(cluster, job, served, 1)
                for role, index in ROUNDS * KILLED:
                    while (pod := running_pod(await cluster.list_pods(job), role, index)) is None:  # noqa: ASYNC110 -- there is no event
                        await asyncio.sleep(0.1)
                    assert cluster.signal_pod(job.namespace, pod.name, signal.SIGKILL)
                    await until_published(cluster, job, served, 2)
                    served.copy()
            await asyncio.to_thread(end_data, await status_of(cluster, job), clicks.files * CLICKS)
            while (status := await status_of(cluster, job)).phase != "Succeeded" or not is_published(status):
                assert status.phase != "Failed", status.conditions
                served.look()
                await asyncio.sleep(0.1)
        return status


def is_published(status: Status) -> bool:
    return status.result is not None and status.published is not None and status.published.anchor == status.result.key


def pins_of(status: Status) -> Pins:
    """Return the pins in the store of a job."""
    assert status.runtime is not None
    return Pins(from_json(JobSpec, status.runtime.job_spec))


def end_data(status: Status, rows: int) -> None:
    """Pin the end once all rows are pinned. The leader may pin void samples at the same time."""
    pins = pins_of(status)
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
    spec["snapshots"]["keep"] = 128
    with Follower(spec["publish"]["to"], tmp_path / "followed", every_s=0.2) as follower:
        served = Served(follower, folders["copies"])
        status = asyncio.run(train_and_kill(folders["work"], clicks, served, manifest))
        follower.update()
        served.copy()
    pins = pins_of(status)
    pins.read()
    assert pins.trained()[0] == Counter(range(clicks.files * CLICKS))
    assert not any(status.ledger.ranges), "nothing is lost"
    assert served.sequences == sorted(served.sequences), "the chain never goes back"
    assert status.result is not None
    assert served.follower.model.about["anchor"] == status.result.key
    compared = 0
    by_name = {anchor.key.replace("/", "."): anchor.key for anchor in status.anchors}
    for copy in folders["copies"].iterdir():
        if copy.name not in by_name:
            continue  # an anchor of a generation that was rolled back, or of the first minutes
        exported = tmp_path / f"exported-{compared}"
        command = (*CPRJOB, "export", "--workdir", str(folders["work"]), "--anchor", by_name[copy.name])
        subprocess.run((*command, "--to", str(exported)), check=True)
        assert files_of(copy) == files_of(exported)
        compared += 1
    assert compared >= ROUNDS
