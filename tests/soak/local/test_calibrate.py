"""`cprjob calibrate` for real: the trainer image's own training, on a small job."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]

CPRJOB = (sys.executable, "-c", "from cpr_operator.cli import main; main()")
SAMPLES, BATCH, SHARDS = 6400, 64, 3
JOB: dict[str, Any] = {
    "apiVersion": "cprjob.io/v1alpha1",
    "kind": "CPRJob",
    "metadata": {"name": "small"},
    "spec": {
        "image": "none",
        "accuracyBudget": {"type": "AUCDrop", "aucDrop": {"limit": 0.001}},
        "model": {
            "embeddingDim": 4,
            "bottomMlp": [8, 4],
            "topMlp": [8, 1],
            "tables": [{"name": name, "rows": 500} for name in ("a", "b", "c")],
        },
        "data": {"format": "Synthetic", "samples": 10**9, "batchSize": BATCH, "seed": 4},
        "shards": {"replicas": SHARDS},
        "snapshots": {"store": {"endpoint": "http://nowhere:9000", "bucket": "b"}},
    },
}


def calibrate(folder: Path, spec: dict[str, Any], *arguments: str) -> subprocess.CompletedProcess[str]:
    manifest = folder / "small.yaml"
    manifest.write_text(yaml.safe_dump(JOB | {"spec": JOB["spec"] | spec}), "utf-8")
    command = (*CPRJOB, "calibrate", str(manifest), *arguments)
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def test_calibration_measures_what_losses_cost(tmp_path: Path) -> None:
    plot = tmp_path / "out.png"
    options = ("--levels", "0.1,0.5", "--seeds", "2", "--samples", str(SAMPLES), "--json", "--plot", str(plot))
    done = calibrate(tmp_path, {}, *options)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    pairs = answer["pairs"]
    assert [(each["seed"], each["level"]) for each in pairs] == [(4, 0.1), (4, 0.5), (5, 0.1), (5, 0.5)]
    for each in pairs:
        # Two failures of two of three shards, each rounded to whole steps at both ends.
        assert each["pls"] == pytest.approx(each["level"], abs=2 * 2 / 3 * BATCH / SAMPLES)
        assert each["lost_row_updates"] > 0
    assert all(each["auc_drop"] > 0 for each in pairs if each["level"] == 0.5)
    assert answer["sensitivity"]["low"] < answer["sensitivity"]["estimate"] < answer["sensitivity"]["high"]
    assert plot.stat().st_size > 0
    assert "run 6 of 6: seed 5, PLS 0.5" in done.stderr
