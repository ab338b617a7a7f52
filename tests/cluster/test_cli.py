"""`cprjob` on the real cluster, by a user who has the role `edit` in one namespace and no other right, and no
credentials of the store: a job is submitted and watched while a shard is killed, its model is fetched by a pod, and a
model from elsewhere is imported by one.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import yaml

from cluster.harness import Cluster, Space, until
from cluster.harness.store import BUCKET
from cluster.jobs import Run, failures, manifest

BIN = Path(sys.executable).parent
JOB = "by-cprjob"
USER = "cprjob-user"
STARTS = "starts as shard"
#: Many enough that the shard is killed before the end.
DATA = {"format": "Synthetic", "samples": 200_000, "batchSize": 128, "seed": 1, "holdOut": 0.05}
WATCHED_S = 420
#: The anchor of an import whose name is that of the job, without a dense network.
STARTS_FROM = {
    "anchor": "import-ranker/gen-0001/dense/group-0001/step-000000000/manifest.json",
    "dense": "Initialise",
}
#: Values of a vocabulary: half of those that the data has.
ITEMS = 40
#: Steps that change no row.
STILL = {"kind": "SGD", "learningRate": 1e-30}
NUMBERED = {
    "model__tables": [
        {"name": "user", "rows": 500, "ids": "RowNumber"},
        {
            "name": "item",
            "rows": ITEMS + 1,
            "ids": "Vocabulary",
            "vocabulary": {"uri": f"s3://{BUCKET}/elsewhere/items.txt"},
            "outOfRange": "DefaultRow",
        },
    ],
    "model__sparseOptimizer": STILL,
    "data": {
        "format": "CSV",
        "uri": f"s3://{BUCKET}/elsewhere/clicks.csv",
        "columns": {"labels": ["label"], "numbers": ["price"], "categories": ["user", "item"]},
        "epochs": 1,
        "batchSize": 64,
    },
    "trainers__replicas": 1,
    "shards__replicas": 2,
}


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


@pytest.fixture(scope="class")
def cprjob(cluster: Cluster, space: Space, tmp_path_factory: pytest.TempPathFactory) -> Cprjob:
    folder = tmp_path_factory.mktemp("cprjob")
    return Cprjob(kubeconfig(cluster, space, folder / "kubeconfig"), folder)


@pytest.mark.timeout(2 * WATCHED_S, func_only=True)
class TestCprjob:
    def test_a_job_is_watched_struck_and_its_model_fetched(self, space: Space, cprjob: Cprjob) -> None:
        folder = cprjob.folder
        file, shown, log = folder / "job.yaml", folder / "watch.log", folder / "shard-1.log"
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
        model = json.loads((folder / "model" / "model.json").read_text("utf-8"))
        assert (model["anchor"], model["samples"]) == (report["result"], total)
        assert len(list((folder / "model" / "tables").iterdir())) == len(model["model"]["tables"])
        assert cprjob.json("evaluate", f"cpr/{JOB}")["samples"] > 0
        tools = ("get", "pods", "--selector", "app.kubernetes.io/component=tool", "-o", "name")
        until("no pod of cprjob is left", lambda: space.kubectl(*tools) == "", 30)
        cprjob("delete", JOB)
        until("the job is gone", lambda: not space.kubectl("get", "cprjob", JOB, "--ignore-not-found"), 40)

    def test_a_job_starts_from_rows_that_were_trained_elsewhere(
        self, cluster: Cluster, space: Space, cprjob: Cprjob
    ) -> None:
        """Bit for bit, as it learns too slowly to change them."""
        rows = {"user": torch.randn(500, 8), "item": torch.randn(ITEMS + 1, 8)}
        values = "".join(f"item-{number}\n" for number in range(ITEMS))
        clicks = "".join(f"{n % 2},{n % 10},{n % 500},item-{n % (2 * ITEMS)}\n" for n in range(2000))
        cluster.store.put("elsewhere/ranker.safetensors", safetensors.torch.save(rows))
        cluster.store.put("elsewhere/items.txt", values.encode())
        cluster.store.put("elsewhere/clicks.csv", f"label,price,user,item\n{clicks}".encode())
        space.apply(manifest("ranker", **NUMBERED, restoreFrom=STARTS_FROM, suspend=True))
        options = ("--from", f"s3://{BUCKET}/elsewhere/ranker.safetensors", "--missing", "Initialise")
        cluster.store.delete("import-ranker/")  # a run of these tests that was killed leaves it
        said = cprjob("import", "cpr/ranker", *options, "--dense", "Initialise")
        assert yaml.safe_load(said.partition("Start from it by\n")[2]) == {"restoreFrom": STARTS_FROM}
        cprjob("resume", "ranker")
        run = Run(space, "ranker")
        assert run.finish()["progress"]["samples"] == 2000
        cprjob("export", "cpr/ranker", "--to", "ranker")
        for name, expected in rows.items():
            found = safetensors.torch.load_file(cprjob.folder / "ranker" / "tables" / f"{name}.safetensors")["weight"]
            assert torch.equal(found, expected), name
