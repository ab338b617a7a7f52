"""The saves of real runs on this machine: looked at, pruned by hand, and deleted with their job."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from cpr_operator.cluster.local import LocalCluster
from cpr_operator.cluster.protocol import NotFoundError
from cpr_operator.cluster.views import JobView
from cpr_operator.controller import Controller
from cpr_operator.reconcile import Timing
from support.runs import CPRJOB, PATIENCE_S, run, small_job

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]


def snapshots(*arguments: object) -> tuple[int, Any]:
    """Exit code and JSON of `cprjob snapshots`."""
    command = (*CPRJOB, "snapshots", *map(str, arguments), "--json")
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=False)
    return done.returncode, json.loads(done.stdout)


def test_what_a_run_saved_is_listed_verified_and_pruned_to_its_model(tmp_path: Path) -> None:
    manifest = tmp_path / "small.yaml"
    manifest.write_text(yaml.safe_dump(small_job()), "utf-8")
    code, report, output = run(tmp_path, manifest, "--kill", "shard/1@0.5:POD", "--set", "snapshots.strategy=SSU")
    assert code == 0, output
    work = tmp_path / "work"
    code, listed = snapshots("ls", "--workdir", work)
    anchors = [point for point in listed["points"] if point["kind"] == "Anchor"]
    assert code == 0
    assert anchors[-1]["key"] == report["result"]
    assert {point["strategy"] for point in listed["points"] if point["kind"] == "Priority"} <= {"SSU"}
    code, verified = snapshots("verify", "--workdir", work)
    assert (code, verified["damaged"]) == (0, [])
    for path in (work / "store").rglob("*"):  # nothing is older than a minute yet
        if path.is_file():
            os.utime(path, (time.time() - 3600, time.time() - 3600))
    code, pruned = snapshots("prune", "--workdir", work, "--keep", 1, "--delete")
    *bases, model = pruned["stay"]
    assert model["key"] == report["result"]
    # Its saves of shards may stand on a save that no anchor names: the one of a shard that was replaced at a cut.
    assert {point["step"] for point in bases} <= set(model["bases"])
    code, verified = snapshots("verify", "--workdir", work)
    assert (code, verified["damaged"]) == (0, [])
    done = subprocess.run((*CPRJOB, "export", "--workdir", work, "--to", tmp_path / "model"), check=False)
    assert done.returncode == 0


async def test_a_job_of_this_machine_is_deleted_with_its_saves(tmp_path: Path) -> None:
    document = small_job(data={"format": "Synthetic", "samples": 10_000_000, "batchSize": 64})
    document["metadata"]["namespace"] = "default"
    store = {"endpoint": f"file://{tmp_path}/store", "bucket": "b"}
    document["spec"]["snapshots"] |= {"store": store, "deleteWithJob": True}
    cluster = LocalCluster(tmp_path / "work", clock=time.time, rng=random.Random(1), environment=os.environ)
    try:
        job = cluster.create_job(document)
        controller = Controller(cluster, time.time, timing=Timing(running_s=0.5, changing_s=0.2, progress_s=0.5))
        saves = tmp_path / "store" / "b"
        await _passes(controller, job, lambda: any((saves / job.uid).rglob("dense/**/manifest.json")))
        (saves / "another-job").mkdir()
        (saves / "another-job" / "manifest.json").write_bytes(b"")
        await cluster.delete_job(await cluster.get_job(job.namespace, job.name))
        await _passes(controller, job, lambda: False)
        with pytest.raises(NotFoundError):
            await cluster.get_job(job.namespace, job.name)
        assert [path.name for path in saves.rglob("*") if path.is_file()] == ["manifest.json"]
        assert [event.reason for event in cluster.events.values()][-1] == "SavesDeleted"
    finally:
        await cluster.close()


async def _passes(controller: Controller, job: JobView, over: Callable[[], bool]) -> None:
    """Run passes until `over` says so, or the job is gone."""
    deadline = time.monotonic() + PATIENCE_S
    while not over():
        assert time.monotonic() < deadline, "it takes too long"
        if await controller.run_pass(job.namespace, job.name) is None:
            return
        await asyncio.sleep(0.1)
