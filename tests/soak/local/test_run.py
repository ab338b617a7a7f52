"""`cprjob run` for real: processes, sockets, files; small jobs."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from support.runs import CPRJOB, incarnations, living, run, small_job, started, until

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(small_job()), "utf-8")
    return path


@contextlib.contextmanager
def training(tmp_path: Path, manifest: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A run that has committed an anchor."""
    with started(tmp_path, manifest, "--set", "data.samples=60000") as process:
        until(lambda: list((tmp_path / "work" / "store").rglob("dense/**/manifest.json")))
        yield process


def test_killed_shard_is_replaced_and_charged_for_what_it_lost(tmp_path: Path, manifest: Path) -> None:
    # No save before the end, so that on a slow machine, too, the shard has something to lose. One of two shards can
    # lose half of all that counts: whenever it dies, the budget allows that.
    budget = ("--set", "accuracyBudget.portionOfLostSamples=0.6")
    arguments = (*budget, "--set", "snapshots.interval.seconds=3600", "--kill", "shard/1@0.3:POD")
    code, report, output = run(tmp_path, manifest, *arguments)
    assert code == 0, output
    assert report["phase"] == "Succeeded"
    assert report["samples"] == 40000
    assert incarnations(report) == {"shard/0": 1, "shard/1": 2, "trainer/0": 1}
    (failure,) = report["failures"]
    assert (failure["role"], failure["index"], failure["kind"]) == ("shard", 1, "Killed")
    assert failure["action"] == "ReplaceShards"
    assert 0 < report["budget"]["spent"] <= report["budget"]["limit"]
    assert report["budget"]["rollbacks"] == 0
    assert report["budget"]["running_sum"] == report["budget"]["spent"]
    assert failure["lost_samples"] == round(report["budget"]["spent"] * 40000 * 2)
    assert failure["lost_row_updates"] == report["lost_row_updates"] > 0
    assert failure["lost_row_updates_exact"]
    assert f"{failure['lost_row_updates']:,} row updates lost" in output
    assert "SIGKILL to all of shard/1" in output
    until(lambda: not living(tmp_path))
    done = subprocess.run((*CPRJOB, "export", "--workdir", tmp_path / "work", "--to", tmp_path / "model"), check=False)
    assert done.returncode == 0
    assert (tmp_path / "model" / "model.json").exists()


def test_terminated_shard_loses_nothing(tmp_path: Path, manifest: Path) -> None:
    code, report, output = run(tmp_path, manifest, "--kill", "shard/0@0.3:TERM")
    assert code == 0, output
    assert incarnations(report) == {"shard/0": 2, "shard/1": 1, "trainer/0": 1}
    assert report["budget"]["spent"] == 0
    assert [(each["lost_samples"], each["lost_row_updates"]) for each in report["failures"]] == [(0, 0)]


def test_killed_run_leaves_no_process_and_can_be_resumed(tmp_path: Path, manifest: Path) -> None:
    with training(tmp_path, manifest) as first:
        first.kill()
        first.wait()
    until(lambda: not living(tmp_path))
    code, report, output = run(tmp_path, "--resume")
    assert code == 0, output
    assert report["samples"] == 60000
    assert report["budget"]["spent"] <= report["budget"]["limit"]
