"""`cprjob run` for real: processes, sockets, files; small jobs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = [pytest.mark.dist, pytest.mark.timeout(300)]

CPRJOB = (sys.executable, "-c", "from cpr_operator.cli import main; main()")
JOB = {
    "apiVersion": "cprjob.io/v1alpha1",
    "kind": "CPRJob",
    "metadata": {"name": "small"},
    "spec": {
        "image": "none",
        "accuracyBudget": {"portionOfLostSamples": 0.4},
        "model": {
            "embeddingDim": 4,
            "bottomMlp": [8, 4],
            "topMlp": [8, 1],
            "tables": [{"name": name, "rows": 500} for name in ("a", "b", "c")],
        },
        "data": {"format": "Synthetic", "samples": 40000, "batchSize": 64},
        "snapshots": {
            "store": {"endpoint": "http://nowhere:9000", "bucket": "b"},
            "interval": {"mode": "Fixed", "seconds": 1},
            "denseIntervalSeconds": 1,
        },
        "failurePolicy": {"silenceSeconds": 20},
    },
}


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(JOB), "utf-8")
    return path


def run(tmp_path: Path, *arguments: object) -> tuple[int, dict[str, Any], str]:
    """Exit code, report and output of a whole run."""
    out = tmp_path / "report.json"
    command = (*CPRJOB, "run", *map(str, arguments), "--workdir", tmp_path / "work", "--report", out)
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240, check=False
    )
    return done.returncode, json.loads(out.read_text()), done.stdout


def incarnations(report: dict[str, Any]) -> dict[str, int]:
    return {f"{pod['role']}/{pod['index']}": pod["incarnation"] for pod in report["pods"]}


def living(tmp_path: Path) -> list[str]:
    """Processes that write below the working folder."""
    found = []
    for path in Path("/proc").iterdir():
        try:
            if path.name.isdigit() and str(tmp_path / "work") in str((path / "fd" / "1").readlink()):
                found.append(path.name)
        except OSError:
            continue
    return found


def until(found: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if value := found():
            return value
        time.sleep(0.1)
    pytest.fail("it did not come true")


def start_and_train(tmp_path: Path, manifest: Path) -> subprocess.Popen[bytes]:
    """A run that has committed an anchor."""
    command = (*CPRJOB, "run", manifest, "--set", "data.samples=60000", "--workdir", tmp_path / "work")
    with (tmp_path / "first.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    until(lambda: list((tmp_path / "work" / "store").rglob("dense/**/manifest.json")))
    return process


def test_only_the_killed_shard_comes_back(tmp_path: Path, manifest: Path) -> None:
    code, report, output = run(tmp_path, manifest, "--kill", "shard/1@0.5")
    assert code == 0, output
    assert report["phase"] == "Succeeded"
    assert report["samples"] == 40000
    assert incarnations(report) == {"shard/0": 1, "shard/1": 2, "trainer/0": 1}
    (failure,) = report["failures"]
    assert (failure["role"], failure["index"], failure["kind"]) == ("shard", 1, "Killed")
    assert failure["action"] == "ReplaceShards"
    assert 0 < report["budget"]["spent"] <= report["budget"]["limit"]
    assert report["budget"]["rollbacks"] == 0
    assert failure["lost_samples"] == round(report["budget"]["spent"] * 40000 * 2)
    assert "SIGKILL to shard/1" in output
    assert living(tmp_path) == []
    done = subprocess.run((*CPRJOB, "export", "--workdir", tmp_path / "work", "--to", tmp_path / "model"), check=False)
    assert done.returncode == 0
    assert (tmp_path / "model" / "model.json").exists()


def test_a_shard_that_may_save_loses_nothing(tmp_path: Path, manifest: Path) -> None:
    code, report, output = run(tmp_path, manifest, "--kill", "shard/0@0.5:TERM")
    assert code == 0, output
    assert incarnations(report) == {"shard/0": 2, "shard/1": 1, "trainer/0": 1}
    assert report["budget"]["spent"] == 0
    assert [failure["lost_samples"] for failure in report["failures"]] == [0]


def test_an_interrupted_run_saves_everything_and_goes_on(tmp_path: Path, manifest: Path) -> None:
    first = start_and_train(tmp_path, manifest)
    first.send_signal(signal.SIGINT)
    assert first.wait(120) == 130
    assert living(tmp_path) == []
    assert f"cprjob run --resume --workdir {tmp_path / 'work'}" in (tmp_path / "first.log").read_text()
    code, report, output = run(tmp_path, "--resume")
    assert code == 0, output
    assert report["samples"] == 60000
    assert report["budget"]["spent"] == 0
    assert set(incarnations(report).values()) == {2}


def test_a_killed_run_leaves_nothing_behind_and_can_be_resumed(tmp_path: Path, manifest: Path) -> None:
    first = start_and_train(tmp_path, manifest)
    first.kill()
    first.wait()
    until(lambda: not living(tmp_path))
    code, report, output = run(tmp_path, "--resume")
    assert code == 0, output
    assert report["samples"] == 60000
    assert report["budget"]["spent"] <= report["budget"]["limit"]


def test_a_job_that_cannot_be_trained_fails_with_the_reason(tmp_path: Path, manifest: Path) -> None:
    data = ("--set", "data.format=Criteo", "--set", f"data.uri={tmp_path / 'absent.tsv'}")
    code, report, output = run(tmp_path, manifest, *data)
    assert code == 1
    assert report["phase"] == "Failed"
    assert "absent.tsv" in output
    assert living(tmp_path) == []
