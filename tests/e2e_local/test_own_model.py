"""`cprjob run` with a dense network of one's own over bags of ids: the example, and entrypoints that are wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from safetensors.numpy import load_file

from support.runs import CPRJOB, incarnations, lost_in_model, run, small_job, status

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_model"


def cprjob(*arguments: object) -> str:
    done = subprocess.run((*CPRJOB, *map(str, arguments)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_survives_the_loss_of_a_shard_and_leaves_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run([sys.executable, EXAMPLE / "clicks.py", tmp_path / "clicks", "30000"], check=True)
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLE), prepend=":")
    job = EXAMPLE / "job.yaml"
    changes = (f"data.uri={tmp_path}/clicks/", "data.epochs=2", "data.batchSize=64")
    settings = (word for change in changes for word in ("--set", change))
    code, report, output = run(tmp_path, job, *settings, "--kill", "shard/1@0.5:POD")
    assert code == 0, output
    assert report["samples"] == 2 * 27_000
    assert incarnations(report) == {"shard/0": 1, "shard/1": 2, "trainer/0": 1, "trainer/1": 1}
    (failure,) = report["failures"]
    assert (failure["role"], failure["index"], failure["kind"]) == ("shard", 1, "Killed")
    end = status(tmp_path)
    lost = lost_in_model(tmp_path / "work" / "store" / "saves", end["result"]["key"])
    assert lost == end["ledger"]["ranges"], "the account is what the model's own manifests say"
    assert lost[0] == []
    assert sum(stop - start for start, stop in lost[1]) == failure["lost_samples"]
    assert report["budget"]["spent"] == pytest.approx(failure["lost_samples"] / (2 * report["samples"]))
    assert report["budget"]["spent"] <= report["budget"]["limit"]
    score = json.loads(cprjob("evaluate", "--workdir", tmp_path / "work", "--json"))
    assert score["samples"] == 3000
    assert score["auc"] > 0.7, "who knows the rule scores 0.88"
    cprjob("export", "--workdir", tmp_path / "work", "--to", tmp_path / "model")
    dense = load_file(tmp_path / "model" / "dense.safetensors")
    assert dense["norm.running_var"].shape == (13,)
    assert dense["norm.num_batches_tracked"] > 0, "buffers are part of the model"
    about = json.loads((tmp_path / "model" / "model.json").read_text())
    assert about["model"]["entrypoint"] == "dcn:Dcn"
    assert load_file(tmp_path / "model" / "tables" / "tags.safetensors")["weight"].shape == (1000, 8)


def test_an_entrypoint_that_is_not_in_the_image_fails_the_job_with_a_remedy(tmp_path: Path) -> None:
    job = small_job()
    job["spec"]["model"]["entrypoint"] = "not_there.model:build"
    manifest = tmp_path / "wrong.yaml"
    manifest.write_text(yaml.safe_dump(job), "utf-8")
    code, report, output = run(tmp_path, manifest)
    assert code == 1
    assert report["phase"] == "Failed"
    told = " ".join(output.split())
    assert "The entrypoint not_there.model:build cannot be imported: ModuleNotFoundError" in told
    assert "PYTHONPATH of the image" in told
