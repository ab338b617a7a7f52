"""`cprjob run` with a spare: a shard's whole pod is killed, and a process that was there already takes its place."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from support.runs import incarnations, run, small_job

pytestmark = [pytest.mark.dist, pytest.mark.timeout(800)]


def test_a_spare_takes_the_place_of_a_killed_shard_and_nothing_is_lost(tmp_path: Path) -> None:
    manifest = tmp_path / "small.yaml"
    document = small_job(
        accuracyBudget={"portionOfLostSamples": 0},
        recovery={"replay": {"mode": "Auto", "memory": "64Mi"}},
        data={"format": "Synthetic", "samples": 150_000, "batchSize": 64},
        shards={"replicas": 2, "spares": 1},
    )
    manifest.write_text(yaml.safe_dump(document), "utf-8")
    code, report, output = run(tmp_path, manifest, "--kill", "shard/1@0.5:POD")
    assert code == 0, output
    assert incarnations(report) == {"shard/0": 1, "shard/1": 2, "trainer/0": 1}
    (failure,) = report["failures"]
    assert (failure["kind"], failure["tier"], failure["action"]) == ("Killed", "Spare", "ReplaceShards"), output
    assert (failure["lost_samples"], failure["lost_row_updates"], report["budget"]["rollbacks"]) == (0, 0, 0)
    names = {(pod["role"], pod["index"]): pod["name"] for pod in report["pods"]}
    assert names["shard", 1].endswith("-spare-1")
    assert "SparePromoted: shard/1, incarnation 2, is the spare" in output
    logs = [path.read_text() for path in sorted((tmp_path / "work" / "pods").glob("*-spare-*/log.txt"))]
    assert ["is shard 1 of generation 1, incarnation 2" in log for log in logs] == [True, False]
