"""`cprjob` on the real cluster, by a user who has the role `edit` in one namespace and no other right, and no
credentials of the store: a job is submitted and watched while a shard is killed, and its model is fetched by a pod.
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
from cluster.jobs import Run, failures, manifest

BIN = Path(sys.executable).parent
JOB = "by-cprjob"
USER = "cprjob-user"
STARTS = "starts as shard"
#: Many enough that the shard is killed before the end.
DATA = {"format": "Synthetic", "samples": 200_000, "batchSize": 128, "seed": 1, "holdOut": 0.05}
WATCHED_S = 420


def kubeconfig(cluster: Cluster, space: Space, path: Path) -> Path:
    """That of a service account with the role `edit` in the namespace."""
    space.kubectl("create", "serviceaccount", USER)
    account = f"--serviceaccount={space.name}:{USER}"
    space.kubectl("create", "rolebinding", USER, "--clusterrole=edit", account)
    config = json.loads(cluster.kubectl("config", "view", "--raw", "--flatten", "--minify", "-o", "json"))
    token = space.kubectl("create", "token", USER).strip()
    for user in config["users"]:
        user["user"] = {"token": token}
    for context in config["contexts"]:
        context["context"]["namespace"] = space.name
    path.write_text(json.dumps(config), "utf-8")
    who = f"--as=system:serviceaccount:{space.name}:{USER}"
    until("the role is in force", lambda: "yes" in space.kubectl("auth", "can-i", "create", "cprjobs", who).split(), 10)
    return path


class Cprjob:
    """The program as that user starts it."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("CPR_", "KUBE"))}
        self.environment = {**kept, "KUBECONFIG": str(kubeconfig), "PATH": f"{BIN}:{os.environ['PATH']}"}

    def __call__(self, *arguments: str, program: tuple[str, ...] = ("cprjob",)) -> str:
        done = subprocess.run(
            [*program, *arguments], cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))

    def start(self, into: Path, *arguments: str) -> subprocess.Popen[bytes]:
        with into.open("wb") as output:
            return subprocess.Popen(
                ["cprjob", *arguments], cwd=self.folder, env=self.environment, stdout=output, stderr=subprocess.STDOUT
            )


@pytest.mark.timeout(2 * WATCHED_S, func_only=True)
class TestCprjob:
    def test_a_job_is_watched_struck_and_its_model_fetched(
        self, cluster: Cluster, space: Space, tmp_path: Path
    ) -> None:
        cprjob = Cprjob(kubeconfig(cluster, space, tmp_path / "kubeconfig"), tmp_path)
        file, shown, log = tmp_path / "job.yaml", tmp_path / "watch.log", tmp_path / "shard-1.log"
        file.write_text(yaml.safe_dump(manifest(JOB, data=DATA)), "utf-8")
        watch = cprjob.start(shown, "submit", str(file), "--watch")
        tail = None
        try:
            run = Run(space, JOB)
            run.wait("trains", lambda status: status.get("phase") == "Running", within_s=120)
            tail = cprjob.start(log, "logs", JOB, "-f", "--role", "shard", "--index", "1")
            until("the log is shown", lambda: STARTS in log.read_text("utf-8"), 30)
            run.reach(0.1)
            struck = cprjob("chaos", JOB, "--kill", "shard/1")
            assert f"killed shard/1 (pod {JOB}-" in struck
            until("the log has both pods", lambda: log.read_text("utf-8").count(STARTS) == 2, 60)
            assert watch.wait(WATCHED_S) == 0, shown.read_text("utf-8")
            assert tail.wait(30) == 0, "the job has ended, and so has its log"
        finally:
            for process in (watch, tail):
                if process is not None:
                    process.kill()
                    process.wait()
        said = " ".join(shown.read_text("utf-8").split())
        assert f"{JOB}: Succeeded" in said
        total = run.status()["progress"]["totalSamples"]
        assert f"{total:,} of {total:,} samples" in said
        assert f"cprjob export cpr/{JOB} --to model -n {space.name}" in said
        assert failures(space.job(JOB)["status"]) == [("shard", 1, 1, "Vanished")]
        assert "Partial" in cprjob("get", JOB, "-o", "wide")
        assert "ETA" in cprjob("logs", JOB), "a line about training"
        assert cprjob("cprjob", "get", JOB, "-o", "name", program=("kubectl",)) == f"cpr/{JOB}\n"

        report = cprjob.json("report", f"cpr/{JOB}")
        assert report["failures"][0]["kind"] == "Vanished"
        listed = cprjob.json("snapshots", "ls", f"cpr/{JOB}")
        assert report["result"] in {point["key"] for point in listed["points"]}
        assert cprjob.json("snapshots", "verify", f"cpr/{JOB}")["damaged"] == []
        cprjob("export", f"cpr/{JOB}", "--to", "model")
        model = json.loads((tmp_path / "model" / "model.json").read_text("utf-8"))
        assert (model["anchor"], model["samples"]) == (report["result"], total)
        assert len(list((tmp_path / "model" / "tables").iterdir())) == len(model["model"]["tables"])
        assert cprjob.json("evaluate", f"cpr/{JOB}")["samples"] > 0
        tools = ("get", "pods", "--selector", "app.kubernetes.io/component=tool", "-o", "name")
        until("no pod of cprjob is left", lambda: space.kubectl(*tools) == "", 30)
        cprjob("delete", JOB)
        until("the job is gone", lambda: not space.kubectl("get", "cprjob", JOB, "--ignore-not-found"), 40)
