"""`cprjob run` with replay and nothing allowed to be lost: shards die, and the job goes on as if none had."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from support.runs import incarnations, run, small_job

pytestmark = [pytest.mark.dist, pytest.mark.timeout(420)]


@pytest.mark.parametrize("trainers", [1, 2])
def test_with_a_budget_of_0_killed_shards_lose_nothing_and_roll_nothing_back(tmp_path: Path, trainers: int) -> None:
    manifest = tmp_path / "small.yaml"
    recovery = {"replay": {"mode": "Auto", "memory": "64Mi"}}
    budget = {"portionOfLostSamples": 0}
    document = small_job(accuracyBudget=budget, recovery=recovery, trainers={"replicas": trainers})
    manifest.write_text(yaml.safe_dump(document), "utf-8")
    kills = ("--kill", "shard/0@0.3:POD", "--kill", "shard/0@0.6:POD", "--kill", "shard/1@0.6:POD")
    code, report, output = run(tmp_path, manifest, *kills)
    assert code == 0, output
    assert report["phase"] == "Succeeded"
    unharmed = {f"trainer/{rank}": 1 for rank in range(trainers)}
    assert incarnations(report) == {"shard/0": 3, "shard/1": 2, **unharmed}
    assert (report["budget"]["spent"], report["budget"]["rollbacks"]) == (0, 0), output
    assert [each["action"] for each in report["failures"]] == ["ReplaceShards"] * 3
    assert [(each["lost_samples"], each["lost_row_updates"]) for each in report["failures"]] == [(0, 0)] * 3
    assert report["lost_row_updates"] == 0
    assert report["replayed_samples"] == sum(each["replayed_samples"] for each in report["failures"]) > 0
    assert f"{report['replayed_samples']:,} samples pushed again" in output
