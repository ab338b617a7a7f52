"""The real `torchx` command on the real cluster: a job is run, watched while a shard is replaced, and cancelled.

The commands of docs/torchx.md are run in a shell as they are printed, in environments of their own.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.harness import Cluster, Space, until
from cluster.jobs import Run, manifest
from cluster.reader import kubeconfig
from support.fresh import environment
from support.pages import blocks
from support.terminal import Terminal

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "torchx.md"
RELEASE = "Install TorchX 0.7.0 instead"
TORCHX = Path(sys.executable).parent / "torchx"
#: More than is trained before the job is cancelled.
SAMPLES = 20_000_000
STARTS = "starts as shard"


class TorchX:
    """`torchx` in a folder whose .torchxconfig names the cluster and the namespace."""

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


@pytest.mark.timeout(240, func_only=True)
class TestTorchX:
    def test_a_job_is_run_watched_and_cancelled(self, cluster: Cluster, space: Space, tmp_path: Path) -> None:
        data = {"format": "Synthetic", "samples": SAMPLES, "batchSize": 128, "seed": 1}
        file, log = tmp_path / "job.yaml", tmp_path / "shard-1.log"
        file.write_text(yaml.safe_dump(manifest("by-torchx", data=data)), "utf-8")
        torchx = TorchX(tmp_path, cluster, space)
        handle = torchx("run", "-s", "cprjob", "cprjob.dlrm", "--job", str(file), "--shards", "2").strip()
        assert handle == f"cprjob://torchx/{space.name}:by-torchx"
        tail = torchx.tail(f"{handle}/shard/1", log)
        try:
            space.wait_job("by-torchx", "trains", lambda job: job.get("status", {}).get("phase") == "Running", 90)
            found = torchx.status(handle)
            assert found["state"] == "RUNNING"
            assert {each["role"]: len(each["replicas"]) for each in found["roles"]} == {"trainer": 2, "shard": 2}
            assert "starts as trainer" in torchx("log", f"{handle}/trainer/0")

            run = Run(space, "by-torchx")
            run.reach(0.0001)
            space.delete_pod(run.pod("shard", 1).name, force=True)
            run.wait("has a new shard", lambda status: status.get("restarts", 0) > 0 and status["phase"] == "Running")
            until("the tail has both pods", lambda: log.read_text("utf-8").count(STARTS) == 2, 30)
            assert torchx.status(handle)["num_restarts"] == 1

            torchx("cancel", handle)
            run.wait("is suspended", lambda status: status["phase"] == "Suspended", within_s=60)
            assert torchx.status(handle)["state"] == "CANCELLED"
            assert tail.wait(30) == 0, "the job has ended, and so has its log"
        finally:
            tail.kill()
            tail.wait()
        torchx("delete", handle)
        until("the job is gone", lambda: not space.kubectl("get", "cprjob", "by-torchx", "--ignore-not-found"), 40)


class Page:
    """Follows docs/torchx.md section by section."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self.ran: list[str] = []

    def run(self, section: str) -> str:
        """Run the commands of a section; return what they printed."""
        texts = [block.text for block in blocks(PAGE) if block.section == section]
        assert texts, section
        self.ran += texts
        return "".join(map(self._terminal.run, texts))


@pytest.mark.usefixtures("printed_images")
@pytest.mark.timeout(840, func_only=True)
class TestPage:
    def test_its_commands_run_a_job_suspend_it_and_follow_it_to_its_end(
        self, cluster: Cluster, space: Space, tmp_path: Path
    ) -> None:
        variables = environment(tmp_path)
        variables["PATH"] += f":{cluster.kubectl.environment['PATH']}"
        variables["KUBECONFIG"] = str(kubeconfig(cluster, space, tmp_path))
        handle = f"cprjob://torchx/{space.name}:quickstart"
        with Terminal(ROOT, variables) as terminal:
            page = Page(terminal)
            installed = page.run("Install")
            assert "kubeconfig=KUBECONFIG" in installed
            assert "cprjob.dlrm" in installed
            assert "-: valid" in page.run("Look at the manifest first")
            assert f"JOB={handle}\n" in page.run("Run a job")
            watched = page.run("Watch it")
            assert "RUNNING" in watched
            assert "starts as shard" in watched
            followed = page.run("Suspend it, and go on")
            assert [handle, "quickstart", "CANCELLED"] in map(str.split, followed.splitlines())
            assert "starts as trainer" in followed
            assert "'phase': 'Succeeded'" in followed
            progress = space.job("quickstart")["status"]["progress"]
            assert progress["samples"] == progress["totalSamples"]
            page.run("Delete it")
        assert space.kubectl("get", "cprjobs,deployments", "-o", "name") == ""
        assert page.ran == [block.text for block in blocks(PAGE) if block.section != RELEASE]

    def test_its_commands_with_the_last_release_of_torchx(self, tmp_path: Path) -> None:
        with Terminal(ROOT, environment(tmp_path)) as terminal:
            page = Page(terminal)
            page.run(RELEASE)
            assert "-: valid" in page.run("Look at the manifest first")
