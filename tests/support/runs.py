"""`cprjob run` as a user starts it: a small job in a folder, and what it leaves there."""

from __future__ import annotations

import contextlib
import copy
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

CPRJOB = (sys.executable, "-c", "from cpr_operator.cli import main; main()")
TIMEOUT_S = 500.0  # during the tests of the cluster, a run has a small part of two cores

_JOB: dict[str, Any] = {
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
        "failurePolicy": {"silenceSeconds": 60},  # a machine that stalls for seconds kills no member
    },
}


#: For jobs in which a lost shard loses something.
NO_REPLAY = {"replay": {"mode": "Off"}}


def small_job(**spec: Any) -> dict[str, Any]:
    """A CPRJob of seconds, without replay; `spec` replaces whole parts of its spec, but for that."""
    job = copy.deepcopy(_JOB)
    job["spec"] |= spec
    job["spec"]["recovery"] = NO_REPLAY | job["spec"].get("recovery", {})
    return job


def run(tmp_path: Path, *arguments: object) -> tuple[int, dict[str, Any], str]:
    """Exit code, report (empty if there is none) and output of a whole run in tmp_path/work."""
    out = tmp_path / "report.json"
    command = (*CPRJOB, "run", *map(str, arguments), "--workdir", str(tmp_path / "work"), "--report", str(out))
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S, check=False
    )
    return done.returncode, json.loads(out.read_text()) if out.exists() else {}, done.stdout


@contextlib.contextmanager
def started(tmp_path: Path, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """The same in the background, killed at the end if it still runs.

    Its output goes to tmp_path/output.txt, its report to tmp_path/report.json.
    """
    report = ("--report", str(tmp_path / "report.json"))
    command = (*CPRJOB, "run", *map(str, arguments), "--workdir", str(tmp_path / "work"), *report)
    with (
        (tmp_path / "output.txt").open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def status(tmp_path: Path) -> dict[str, Any]:
    """The job's status as it was written last; empty before it was."""
    for path in (tmp_path / "work" / "jobs").rglob("*.json"):
        found: dict[str, Any] = json.loads(path.read_text()).get("status", {})
        return found
    return {}


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
    """The first answer that is true."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        if value := found():
            return value
        time.sleep(0.05)
    pytest.fail("it did not come true")
