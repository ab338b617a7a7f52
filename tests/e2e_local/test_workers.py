"""`cprjob run` with workers that are measured: once, and for the job's life."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from cpr_contract.codec import from_json
from cpr_contract.manifests import WORKERS, WorkersManifest
from support.runs import incarnations, run, small_job, status

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]


def test_trainers_that_are_replaced_have_the_workers_that_the_first_leader_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    job = small_job(trainers={"replicas": 2}, data={"format": "Synthetic", "samples": 200_000, "batchSize": 256})
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job), "utf-8")
    code, report, output = run(tmp_path, tmp_path / "job.yaml", "--kill", "trainer/0@0.1:POD")
    assert code == 0, output
    assert incarnations(report)["trainer/0"] == 2
    (found,) = (tmp_path / "work" / "store").rglob(WORKERS)
    pinned = from_json(WorkersManifest, found.read_text())
    assert pinned.workers in {1, 2}
    assert pinned.reason.startswith("measured for the first batch")
    chosen = {"count": pinned.workers, "reason": pinned.reason}
    assert status(tmp_path)["runtime"]["workers"] == report["workers"] == chosen
    assert f"{pinned.workers} in each trainer" in output
    logs = [path.read_text() for path in (tmp_path / "work" / "pods").rglob("*") if path.is_file()]
    assert sum("measured: " in log for log in logs) == 1, "all others read what it found"
    described = json.loads(status(tmp_path)["runtime"]["jobSpec"])
    assert described["workers"] == 0


def test_a_job_that_states_its_workers_measures_nothing(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(small_job(trainers={"workers": 2})), "utf-8")
    code, report, output = run(tmp_path, tmp_path / "job.yaml")
    assert code == 0, output
    assert report["workers"] == {"count": 2, "reason": "spec.trainers.workers says so"}
    assert not [*(tmp_path / "work" / "store").rglob(WORKERS)]
