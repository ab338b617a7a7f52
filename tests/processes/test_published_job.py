"""A job of this machine publishes models while its members and its publisher are killed, and a follower has them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml

from cprjob_serving import Follower
from support.published_job import files_of
from support.runs import CPRJOB, run, small_job

pytestmark = pytest.mark.dist

KILLS = ("publisher/0@0.3:POD", "shard/1@0.4:POD", "publisher/0@0.6:POD", "trainer/0@0.7:POD")


def test_follower_has_models_of_anchors_while_processes_are_killed(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    dynamic = {"name": "c", "rows": 4096, "ids": "Dynamic", "ttlSteps": 200}
    tables = [{"name": "a", "rows": 5000}, {"name": "b", "rows": 500}, dynamic]
    model = {"embeddingDim": 4, "bottomMlp": [8, 4], "topMlp": [8, 1], "tables": tables}
    uri = (tmp_path / "work" / "published").as_uri()
    job = tmp_path / "job.yaml"
    spec = small_job(
        model=model,
        data={"format": "Synthetic", "samples": 120_000, "batchSize": 64},
        publish={"to": "s3://models/clicks", "everySeconds": 1},
        recovery={"replay": {"mode": "Required"}},
        trainers={"workers": 1},
    )
    job.write_text(yaml.safe_dump(spec), "utf-8")
    seen: list[tuple[int, str, Path]] = []
    over = threading.Event()
    follower = Follower(uri, tmp_path / "followed", every_s=0.1)

    def watch() -> None:
        while not over.wait(0.1):
            if follower.sequence > (seen[-1][0] if seen else 0):
                seen.append((follower.sequence, follower.model.about["anchor"], follower.model.folder))

    with follower:
        watcher = threading.Thread(target=watch)
        watcher.start()
        kills = [argument for kill in KILLS for argument in ("--kill", kill)]
        code, report, output = run(tmp_path, job, *kills)
        over.set()
        watcher.join()
    assert code == 0, output
    assert output.count("to all of publisher/0") == 2
    follower = Follower(uri, tmp_path / "followed")
    request.addfinalizer(follower.stop)
    follower.update()
    assert follower.model.about["anchor"] == report["result"], "the last model is published at the end"
    exported = tmp_path / "exported"
    subprocess.run((*CPRJOB, "export", "--workdir", str(tmp_path / "work"), "--to", str(exported)), check=True)
    assert files_of(follower.model.folder) == files_of(exported)
    published = json.loads((next((tmp_path / "work" / "jobs").rglob("*.json"))).read_text())["status"]["published"]
    assert (published["sequence"], published["anchor"]) == (follower.sequence, report["result"])
    assert len(seen) > 2, "models were followed while the job trained"
    command = (sys.executable, "-m", "cprjob_serving", "follow", "file:///nowhere/at/all", str(tmp_path / "followed"))
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (refused.returncode, "another process follows into" in refused.stderr) == (1, True)
