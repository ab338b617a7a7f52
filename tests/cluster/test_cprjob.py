"""`cprjob` on the cluster, by a user who may edit one namespace and has no credentials of the store.

A job is submitted and watched while a shard is killed, and its model is fetched by a pod. It publishes models while it
trains: its publisher is deleted, and the last model of the chain is the one that was fetched.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.harness import Cluster, Space, until
from cluster.harness.store import BUCKET
from cluster.jobs import ENDLESS, Run, failures, manifest
from cprjob_serving import Follower
from cprjob_serving.sources import source_of
from support.published_job import files_of

BIN = Path(sys.executable).parent
JOB = "by-cprjob"
STARTS = "starts as shard"
DATA = ENDLESS | {"samples": 120_000}


class Cprjob:
    """The program as that user starts it."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        self.folder = folder
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("CPR_", "KUBE"))}
        self.environment = {**environment, "KUBECONFIG": str(kubeconfig), "PATH": f"{BIN}:{os.environ['PATH']}"}

    def __call__(self, *arguments: str, program: str = "cprjob") -> str:
        done = subprocess.run(
            [program, *arguments], cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, into: Path, *arguments: str) -> subprocess.Popen[bytes]:
        with into.open("wb") as output:
            return subprocess.Popen(
                ["cprjob", *arguments], cwd=self.folder, env=self.environment, stdout=output, stderr=subprocess.STDOUT
            )


def delete_publisher(run: Run) -> None:
    """Delete the publisher's pod without a grace period, and wait until another one has continued its chain."""
    before = run.wait("publishes", lambda status: "published" in status, within_s=120)["published"]["sequence"]
    (pod,) = run.space.pods(job=run.name, role="publisher")
    run.space.delete_pod(pod.name, force=True)
    run.wait("publishes again", lambda status: status["published"]["sequence"] > before + 1, within_s=120)
    (successor,) = run.space.pods(job=run.name, role="publisher")
    assert successor.uid != pod.uid


def is_published(status: dict[str, Any]) -> bool:
    return bool(status["published"]["anchor"] == status["result"]["key"])


@pytest.mark.timeout(600, func_only=True)
def test_cprjob_submits_watches_kills_and_exports(cluster: Cluster, space: Space, tmp_path: Path) -> None:
    cprjob = Cprjob(space.editor(tmp_path), tmp_path)
    file, shown, log = tmp_path / "job.yaml", tmp_path / "watch.log", tmp_path / "shard-1.log"
    chain = f"s3://{BUCKET}/{space.name}-models"
    small = {"data": DATA, "trainers__replicas": 1, "shards__replicas": 2}
    small["publish"] = {"to": chain, "everySeconds": 1}
    file.write_text(yaml.safe_dump(manifest(JOB, **small)), "utf-8")
    watch = cprjob.start(shown, "submit", str(file), "--watch")
    tail = None
    try:
        run = Run(space, JOB)
        run.wait("trains", lambda status: status.get("phase") == "Running", within_s=120)
        run.slow_down()  # the shard is killed before the end
        tail = cprjob.start(log, "logs", JOB, "-f", "--role", "shard", "--index", "1")
        until("the log is shown", lambda: STARTS in log.read_text("utf-8"), 120)
        run.reach(0.01)
        assert f"killed shard/1 (pod {JOB}-" in cprjob("chaos", JOB, "--kill", "shard/1")
        delete_publisher(run)
        run.speed_up()
        until("the log has both pods", lambda: log.read_text("utf-8").count(STARTS) == 2, 60)
        assert watch.wait(180) == 0, shown.read_text("utf-8")
        assert tail.wait(30) == 0, "the job has ended, and so has its log"
    finally:
        for process in (watch, tail):
            if process is not None:
                process.kill()
                process.wait()
    total = run.status()["progress"]["totalSamples"]
    output = " ".join(shown.read_text("utf-8").split())
    assert f"{JOB}: Succeeded" in output
    assert f"{total:,} of {total:,} samples" in output
    assert f"cprjob export cpr/{JOB} --to model -n {space.name}" in output
    assert failures(run.status()) == [("shard", 1, 1, "Vanished")]
    assert cprjob("cprjob", "get", JOB, "-o", "name", program="kubectl") == f"cpr/{JOB}\n"

    cprjob("export", f"cpr/{JOB}", "--to", "model")
    model = json.loads((tmp_path / "model" / "model.json").read_text("utf-8"))
    assert (model["anchor"], model["samples"]) == (run.status()["result"]["key"], total)
    assert len(list((tmp_path / "model" / "tables").iterdir())) == len(model["model"]["tables"])
    over = run.wait("has published its model", is_published, within_s=180)
    follower = Follower(chain, tmp_path / "followed", source=source_of(chain, cluster.store.environment()))
    try:
        follower.update()
        assert follower.sequence == over["published"]["sequence"]
        assert files_of(follower.model.folder) == files_of(tmp_path / "model")
    finally:
        follower.stop()
    tools = ("get", "pods", "--selector", "app.kubernetes.io/component=tool", "-o", "name")
    until("no pod of cprjob is left", lambda: space.kubectl(*tools) == "", 120)
