"""`cprjob run` stopped by Ctrl-C and resumed with other shards, twice: the model is as if nothing had happened."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file
from torch import Tensor
from torch.testing import assert_close

from support.runs import CPRJOB, incarnations, living, run, small_job, started, status, until

pytestmark = [pytest.mark.dist, pytest.mark.timeout(800)]
SAMPLES = 120_000


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(
        yaml.safe_dump(
            small_job(
                data={"format": "Synthetic", "samples": SAMPLES, "batchSize": 64},
                trainers={"workers": 1},  # each run would measure for itself
            )
        ),
        "utf-8",
    )
    return path


def suspend_at(tmp_path: Path, samples: int, *arguments: object) -> dict[str, Any]:
    """Run until so many samples are trained, and Ctrl-C; the status of the suspended job."""
    before = _trained(tmp_path)
    with started(tmp_path, *arguments) as process:
        until(lambda: status(tmp_path).get("phase") == "Running" and _trained(tmp_path) >= max(samples, before + 1))
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130
    until(lambda: not living(tmp_path))
    return status(tmp_path)


def _trained(tmp_path: Path) -> int:
    """Samples, as the status says that was written last."""
    return int(status(tmp_path).get("progress", {}).get("samples", 0))


def model(tmp_path: Path) -> dict[str, Tensor]:
    """The exported model of the run in tmp_path/work."""
    folder = tmp_path / "model"
    subprocess.run((*CPRJOB, "export", "--workdir", tmp_path / "work", "--to", folder), check=True)
    tables = {path.stem: load_file(path)["weight"] for path in (folder / "tables").iterdir()}
    return load_file(folder / "dense.safetensors") | tables


def test_two_three_and_two_shards_end_in_the_model_of_two(tmp_path: Path, manifest: Path) -> None:
    calm, changed = tmp_path / "calm", tmp_path / "changed"
    calm.mkdir()
    changed.mkdir()
    code, report, output = run(calm, manifest)
    assert code == 0, output
    first = suspend_at(changed, SAMPLES // 4, manifest)
    second = suspend_at(changed, SAMPLES // 2, "--resume", "--set", "shards.replicas=3")
    code, again, output = run(changed, "--resume", "--set", "shards.replicas=2")
    assert code == 0, output
    assert "3 shards become 2" in output
    assert incarnations(again) == {"shard/0": 3, "shard/1": 3, "trainer/0": 3}
    end = status(changed)
    assert [fork["anchor"] for fork in end["forks"][1:]] == [first["anchors"][-1], second["anchors"][-1]]
    assert [len(each["shards"]) for each in (first, second, end)] == [2, 3, 2]
    assert (again["budget"]["spent"], again["budget"]["rollbacks"], again["failures"]) == (0, 0, [])
    assert again["samples"] == report["samples"] == SAMPLES
    assert again["auc"] == report["auc"], "every sample is scored once"
    assert_close(model(changed), model(calm), rtol=1e-4, atol=1e-6)


def test_a_run_that_was_not_suspended_keeps_its_shards(tmp_path: Path, manifest: Path) -> None:
    with started(tmp_path, manifest) as process:
        until(lambda: status(tmp_path).get("phase") == "Running")
        process.kill()
        process.wait()
    until(lambda: not living(tmp_path))
    command = (*CPRJOB, "run", "--resume", "--set", "shards.replicas=3", "--workdir", tmp_path / "work")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "spec.shards.replicas: can only be changed while the job is suspended" in " ".join(done.stderr.split())
    assert len(status(tmp_path)["shards"]) == 2
