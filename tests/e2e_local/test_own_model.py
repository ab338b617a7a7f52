"""`cprjob run` with a dense network of one's own over bags of ids: the example, and entrypoints that are wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from safetensors.numpy import load_file

from support.runs import CPRJOB, incarnations, run, small_job

pytestmark = [pytest.mark.dist, pytest.mark.timeout(300)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_model"


def cprjob(*arguments: object) -> str:
    done = subprocess.run((*CPRJOB, *map(str, arguments)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_survives_the_loss_of_a_shard_and_leaves_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run([sys.executable, EXAMPLE / "clicks.py", tmp_path / "clicks", "60000"], check=True)
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLE), prepend=":")
    job = EXAMPLE / "job.yaml"
    changes = ("--set", f"data.uri={tmp_path}/clicks/", "--set", "data.epochs=3", "--kill", "shard/1@0.5")
    code, report, output = run(tmp_path, job, *changes)
    assert code == 0, output
    assert report["samples"] == 3 * 54_000
    assert incarnations(report) == {"shard/0": 1, "shard/1": 2, "trainer/0": 1, "trainer/1": 1}
    score = json.loads(cprjob("evaluate", "--workdir", tmp_path / "work", "--json"))
    assert score["samples"] == 6000
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
