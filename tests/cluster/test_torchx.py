"""The `torchx` command on the cluster: a job is run, watched while a shard is replaced, and cancelled."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.harness import Cluster, Space, until
from cluster.jobs import ENDLESS, Run, manifest

TORCHX = Path(sys.executable).parent / "torchx"
STARTS = "starts as shard"


class TorchX:
    """`torchx` in a folder with a .torchxconfig that names the cluster and the namespace."""

    def __init__(self, folder: Path, cluster: Cluster, space: Space) -> None:
        self.folder = folder
        self.environment = {**cluster.kubectl.environment, "HOME": str(folder)}
        options = f"[cprjob]\nkubeconfig = {cluster.kubectl.kubeconfig}\nnamespace = {space.name}\n"
        (folder / ".torchxconfig").write_text(options, "utf-8")

    def __call__(self, *arguments: str) -> str:
        done = subprocess.run(
            [TORCHX, *arguments], cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def status(self, handle: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("status", "--json", handle))
        return found

    def tail(self, member: str, into: Path) -> subprocess.Popen[bytes]:
        with into.open("wb") as output:
            return subprocess.Popen(
                [TORCHX, "log", "--tail", member], cwd=self.folder, env=self.environment, stdout=output
            )


@pytest.mark.timeout(600, func_only=True)
def test_job_is_run_watched_while_a_shard_is_replaced_and_cancelled(
    cluster: Cluster, space: Space, tmp_path: Path
) -> None:
    file, log = tmp_path / "job.yaml", tmp_path / "shard-1.log"
    file.write_text(yaml.safe_dump(manifest("by-torchx", data=ENDLESS, trainers__replicas=1)), "utf-8")
    torchx = TorchX(tmp_path, cluster, space)
    handle = torchx("run", "-s", "cprjob", "cprjob.dlrm", "--job", str(file), "--shards", "2").strip()
    assert handle == f"cprjob://torchx/{space.name}:by-torchx"
    tail = torchx.tail(f"{handle}/shard/1", log)
    try:
        run = Run(space, "by-torchx")
        run.wait("trains", lambda status: status.get("phase") == "Running", within_s=180)
        until("the tail has the first pod", lambda: log.read_text("utf-8").count(STARTS) == 1, 60)
        victim = run.pod("shard", 1)
        run.recover_from("the deletion", lambda: space.delete_pod(victim.name, force=True))
        until("the tail has both pods", lambda: log.read_text("utf-8").count(STARTS) == 2, 60)
        found = torchx.status(handle)
        assert (found["state"], found["num_restarts"]) == ("RUNNING", 1)
        assert {each["role"]: len(each["replicas"]) for each in found["roles"]} == {"trainer": 1, "shard": 2}

        torchx("cancel", handle)
        run.wait("is suspended", lambda status: status["phase"] == "Suspended", within_s=60)
        assert torchx.status(handle)["state"] == "CANCELLED"
        assert tail.wait(30) == 0, "the job has ended, and so has its log"
    finally:
        tail.kill()
        tail.wait()
    torchx("delete", handle)
    run.wait_until_deleted()
