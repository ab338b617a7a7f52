"""`cprjob run` with nothing allowed to be lost: members die, and the job goes on as if none had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from support.runs import exported, incarnations, run, small_job

pytestmark = [pytest.mark.dist, pytest.mark.timeout(800)]

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.yaml"
NOTHING_MAY_BE_LOST = ("--set", "accuracyBudget.portionOfLostSamples=0")
PATIENT = ("--set", "failurePolicy.silenceSeconds=60")  # a machine that stalls for seconds kills nobody
FOUR = ("shard/0@0.1", "shard/1@0.2", "shard/0@0.5", "shard/1@0.5")


def quickstart(folder: Path, *kills: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The report of the example as it is, but for a budget of 0; and each file of its export."""
    folder.mkdir()
    struck = (word for kill in kills for word in ("--kill", kill))
    code, report, output = run(folder, QUICKSTART, *NOTHING_MAY_BE_LOST, *PATIENT, *struck)
    assert code == 0, output
    return report, exported(folder)


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The export of a run without kills."""
    report, files = quickstart(tmp_path_factory.mktemp("calm") / "run")
    assert report["failures"] == []
    assert len([name for name in files if name.endswith(".safetensors")]) == 8, "seven tables and the network"
    return files


@pytest.mark.parametrize(
    ("what", "recovery", "members"),
    [("", ("InPlace", "RestartInPlace"), 1), (":POD", ("NewPod", "ReplaceShards"), 3)],
    ids=["process", "pod"],
)
def test_the_quickstart_with_four_kills_ends_in_the_bytes_of_a_run_without(
    tmp_path: Path, calm: dict[str, bytes], what: str, recovery: tuple[str, str], members: int
) -> None:
    report, files = quickstart(tmp_path / "run", *(kill + what for kill in FOUR))
    assert (report["phase"], report["samples"]) == ("Succeeded", 300_000)
    assert (report["budget"]["limit"], report["budget"]["spent"], report["budget"]["rollbacks"]) == (0, 0, 0)
    failures = report["failures"]
    assert [(each["tier"], each["action"]) for each in failures] == [recovery] * 4
    assert [(each["lost_samples"], each["lost_row_updates"]) for each in failures] == [(0, 0)] * 4
    assert all(each["recovery_s"] > 0 for each in failures)
    assert report["lost_row_updates"] == 0
    assert incarnations(report) == {"shard/0": members, "shard/1": members, "trainer/0": 1}
    assert files.keys() == calm.keys()
    assert [name for name in files if files[name] != calm[name]] == []


@pytest.mark.parametrize("trainers", [1, 2])
def test_with_a_budget_of_0_killed_shards_lose_nothing_and_roll_nothing_back(tmp_path: Path, trainers: int) -> None:
    manifest = tmp_path / "small.yaml"
    recovery = {"replay": {"mode": "Required", "memory": "64Mi"}}
    budget = {"portionOfLostSamples": 0}
    document = small_job(accuracyBudget=budget, recovery=recovery, trainers={"replicas": trainers})
    manifest.write_text(yaml.safe_dump(document), "utf-8")
    kills = ("--kill", "shard/0@0.1:POD", "--kill", "shard/0@0.5:POD", "--kill", "shard/1@0.5:POD")
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
