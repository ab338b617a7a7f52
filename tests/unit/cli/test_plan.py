from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from cpr_operator.cli.app import app

EXAMPLES = Path(__file__).parents[3] / "examples"
runner = CliRunner()


def write(path: Path, status: dict[str, Any] | None = None, **spec: Any) -> str:
    """The Criteo example without replay and with other fields, as `kubectl get -o yaml` would show it."""
    document = yaml.safe_load((EXAMPLES / "criteo-s3.yaml").read_text("utf-8"))
    document["spec"]["recovery"] = {"replay": {"mode": "Off"}}
    document["spec"] |= spec
    if status:
        document["status"] = status
    path.write_text(yaml.safe_dump(document), "utf-8")
    return str(path)


def plan(file: str) -> dict[str, Any]:
    result = runner.invoke(app, ["plan", file, "--json"])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize("example", ["quickstart.yaml", "criteo-s3.yaml", "mlperf-dcnv2.yaml"])
def test_plan_of_every_example(example: str) -> None:
    result = runner.invoke(app, ["plan", str(EXAMPLES / example)])
    assert result.exit_code == 0, result.output
    words = " ".join(result.output.split())
    for says in (
        "Partial recovery with replay, a save every",
        "Still guessed: the cost of a save",
        "expected loss (PLS)",
        "chosen",
        "Partial, open loop",
        "pays off from a budget of",
    ):
        assert says in words
    assert "If this changed" in words


def test_plan_of_mlperfs_model_has_its_memory() -> None:
    below, crossed, above = 171_392, 3 * (2 * 27 * 128 * 512 + 27 * 128), 5_245_953
    found, parameters = plan(str(EXAMPLES / "mlperf-dcnv2.yaml")), below + crossed + above
    assert found["dense_network"] == {"parameters": parameters, "trainer_bytes": 3 * 4 * parameters}
    assert found["shard_memory"]["rows_bytes"] * 16 == pytest.approx(204_184_588 * 2 * 128 * 4, rel=1e-6)


def test_json_has_the_plan_both_modes_and_changes(tmp_path: Path) -> None:
    found = plan(write(tmp_path / "job.yaml"))
    chosen, overhead = found["modes"][found["mode"]], found["expected_overhead"]
    keys = ("mode", "interval_s", "stored_bits", "expected_pls", "expected_overhead", "expected_goodput")
    assert chosen == {key: found[key] for key in keys}
    assert found["expected_goodput"]["productive"] == pytest.approx(1 / (1 + overhead))
    assert sum(found["expected_goodput"].values()) == pytest.approx(1)
    assert set(found["modes"]) == {"Partial", "Full"}
    assert found["modes"]["Full"]["expected_pls"] == 0
    assert found["modes"]["Partial"]["expected_overhead"] <= found["modes"]["Full"]["expected_overhead"]
    assert found["inputs"]["shards"] == 8
    assert "the training time" in found["guesses"]
    assert found["cpr"]["Partial"]["expected_pls"] == pytest.approx(0.1)
    assert found["cpr"]["Full"]["expected_pls"] == 0
    assert 0 < found["break_even_pls"] < 0.1
    assert {change["mode"] for change in found["turns"]} == {"Full"}
    assert {(each["figure"], each["value"]) for each in found["what_if"]} > {("limit", 0.05), ("limit", 0.2)}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"recovery": {"onShardLoss": "Pause"}}, "Replay is on: trainers keep up to"),
        ({"recovery": {"onShardLoss": "Degrade"}}, "Replay is off: with onShardLoss Degrade trainers push nothing"),
        ({"trainers": {"workers": "Auto"}}, "The number of workers of a trainer is not known yet: the first leader"),
        ({"trainers": {"workers": 1}}, "A trainer has 1 worker: spec.trainers.workers says so."),
        ({"trainers": {"workers": 3}}, "A trainer has 3 workers: spec.trainers.workers says so."),
        ({"trainers": {"replicas": 2}}, "Shards update rows once a step: all trainers take each step together."),
        ({"recovery": {"onShardLoss": "Degrade"}}, "Shards update rows once for each push: with onShardLoss Degrade"),
    ],
)
def test_plan_states_the_settings_of_the_job_with_their_reasons(
    tmp_path: Path, spec: dict[str, Any], words: str
) -> None:
    file = write(tmp_path / "job.yaml", **spec)
    found = plan(file)
    printed = " ".join(runner.invoke(app, ["plan", file]).output.split())
    assert words in printed
    assert found["replay"]["reason"] in printed
    assert found["sparse_updates"]["reason"] in printed
    assert ("recovery with replay" in printed) is (found["replay"]["memory_bytes"] > 0) is ("Replay is on" in printed)
    assert found["workers"].get("count") in (None, 1, 3)


@pytest.mark.parametrize(("k", "share"), [(1, 1.0), (4, 0.25)])
def test_plan_states_the_memory_of_redundancy(tmp_path: Path, k: int, share: float) -> None:
    """34 million rows of 16 values and one of state, over 8 shards."""
    recovery = {"replay": {"mode": "Auto"}, "redundancy": {"dataShards": k}}
    file = write(tmp_path / "job.yaml", recovery=recovery, trainers={"replicas": 1})
    memory = plan(file)["shard_memory"]
    rows = memory["rows_bytes"] // (17 * 4)
    fixed = 72 << 20  # logs and flushes, whatever k is
    assert memory["redundancy_bytes"] == pytest.approx(share * rows * (17 * 4 + 1) + rows + fixed, rel=1e-6)
    words = " ".join(runner.invoke(app, ["plan", file]).output.split())
    assert f"redundancy takes {memory['redundancy_bytes'] / (1 << 20):,.1f} MiB more" in words


def test_plan_names_the_entries_of_dynamic_tables(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    document = yaml.safe_load(Path(write(path)).read_text("utf-8"))
    document["spec"]["model"]["tables"][0] |= {"ids": "Dynamic", "rows": 10**7}
    path.write_text(yaml.safe_dump(document), "utf-8")
    size = plan(str(path))["shard_memory"]["rows_bytes"] / (1 << 20)
    words = " ".join(runner.invoke(app, ["plan", str(path)]).output.split())
    assert f"A shard holds {size:,.1f} MiB of rows and their optimizer state, with the entries of dynamic" in words


@pytest.mark.parametrize(
    ("trainers", "steps"),
    [({"replicas": 2}, 8), ({"replicas": 1}, 0), ({"replicas": 2, "sparseUpdates": "PerPush"}, 0)],
)
def test_plan_states_the_memory_of_held_pushes(tmp_path: Path, trainers: dict[str, Any], steps: int) -> None:
    file = write(tmp_path / "job.yaml", recovery={"replay": {"mode": "Auto"}}, trainers=trainers)
    found = plan(file)
    memory, pushed = found["shard_memory"], found["trainer_step"]["pushed_bytes"]
    assert memory["held_bytes"] == pytest.approx(steps * 2 * pushed / 8, rel=1e-3), "of two trainers, on eight shards"
    words = " ".join(runner.invoke(app, ["plan", file]).output.split())
    held = f"pushes of open steps up to {memory['held_bytes'] / (1 << 20):,.1f} MiB"
    assert (held in words) is (steps > 0)


def test_plan_states_the_size_of_the_publisher(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    file = write(path)
    assert plan(file)["publisher"] is None
    document = yaml.safe_load(path.read_text("utf-8"))
    document["spec"]["publish"] = {"to": "s3://models/clicks"}
    first, *others = document["spec"]["model"]["tables"]
    first |= {"ids": "Dynamic", "rows": 5000}
    path.write_text(yaml.safe_dump(document), "utf-8")
    found, rows, dim = plan(file)["publisher"], sum(each["rows"] for each in others), 16
    assert found["digests_bytes"] == 8 * rows + 56 * 8192
    assert found["model_bytes"] == 4 * dim * rows + (8 + 4 * dim) * 8192
    assert found["disk_bytes"] == 2 * found["model_bytes"]
    words = " ".join(runner.invoke(app, ["plan", file]).output.split())
    assert f"{found['digests_bytes'] / (1 << 20):,.1f} MiB of memory for digests of rows" in words


def test_plan_of_a_started_job_has_the_mode_that_it_started_with(tmp_path: Path) -> None:
    older = {"image": "i", "contractVersion": 1, "templateHash": "h", "jobSpec": "{}"}
    chosen = {"mode": "PerPush", "reason": "the trainer image predates updates per step"}
    status = {"runtime": {**older, "sparseUpdates": chosen, "workers": {"count": 1, "reason": "stated"}}}
    found = plan(write(tmp_path / "job.yaml", status, trainers={"replicas": 2}))
    assert found["sparse_updates"] == chosen


def test_plan_guesses_follow_the_sizes_in_the_manifest(tmp_path: Path) -> None:
    """As MLPerf's DLRM: five tables of 40 million rows with 128 values and as many of state, over 16 shards."""
    tables = [{"name": f"c{index}", "rows": 40_000_000} for index in range(5)]
    model = {"embeddingDim": 128, "topMlp": [1], "tables": tables, "bottomMlp": [128]}
    model["sparseOptimizer"] = {"kind": "Adagrad", "learningRate": 0.005}
    data = {"format": "Synthetic", "samples": 10**9, "batchSize": 1 << 19}
    small = {"spec": {"containers": [{"name": "main", "resources": {"limits": {"memory": "8Gi"}}}]}}
    given = {"model": model, "data": data, "recovery": {}, "shards": {"replicas": 16, "template": small}}
    file = write(tmp_path / "job.yaml", **given, trainers={"replicas": 8})
    found = plan(file)
    assert found["shard_memory"]["rows_bytes"] == 5 * 40_000_000 * 256 * 4 // 16
    assert found["inputs"]["commitSeconds"] == pytest.approx(found["shard_memory"]["rows_bytes"] / (256 << 20))
    assert found["inputs"]["saveStallSeconds"] > 2
    assert found["inputs"]["loadSeconds"] > 10
    assert found["trainer_step"]["pushed_bytes"] == pytest.approx(5 * 65536 * 516, rel=1e-3)
    assert found["trainer_step"]["steps_until_full"] == 1
    fields = {each["field"]: each["message"] for each in found["warnings"]}
    assert "cannot hold a shard" in fields["spec.shards.template.spec.containers[main].resources"]
    assert "the leader saves after every 1 steps" in fields["spec.recovery.replay.memory"]
    words = " ".join(runner.invoke(app, ["plan", file]).output.split())
    assert "1 steps fill its memory for replay" in words
    assert "warning spec.recovery.replay.memory" in words


def test_plan_obeys_a_forced_mode_and_a_fixed_interval(tmp_path: Path) -> None:
    forced = plan(write(tmp_path / "job.yaml", recovery={"mode": "Full"}))
    assert forced["mode"] == "Full"
    assert forced["turns"] == []
    quickstart = plan(str(EXAMPLES / "quickstart.yaml"))
    assert (quickstart["mode"], quickstart["interval_s"]) == ("Partial", 1)


def test_plan_uses_measurements_of_the_job(tmp_path: Path) -> None:
    learnt = {"saveStallSeconds": 2.0, "commitSeconds": 9.0, "loadSeconds": 3.0, "rescheduleSeconds": 1.0}
    learnt |= {"samplesPerSecond": 100.0, "alpha": 3.0, "betaSeconds": 600.0, "lostPerFailure": 1.5}
    status = {"policy": learnt, "ledger": {"totalSamples": 10_000_000}}
    found = plan(write(tmp_path / "job.yaml", status))
    assert found["guesses"] == []
    assert found["inputs"]["saveStallSeconds"] == 2.0
    assert found["inputs"]["totalSamples"] == 10_000_000
    assert (found["inputs"]["mtbfSeconds"], found["inputs"]["lostPerFailure"]) == (200.0, 1.5)


def test_plan_marks_a_guessed_sensitivity(tmp_path: Path) -> None:
    file = write(tmp_path / "job.yaml", accuracyBudget={"type": "AUCDrop", "aucDrop": {"limit": 0.0005}})
    assert "only a guess" in plan(file)["reason"]
